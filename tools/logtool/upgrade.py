"""`upgrade`: whether this version can open a directory, what would change, and which versions can go back."""

from __future__ import annotations

from pathlib import Path

import click

from engine.config import TopicConfig
from engine.directory_layout import FORMAT_VERSION, OLDEST_VERSION
from engine.errors import InvalidConfig
from engine.files.system import SystemFiles
from engine.reader import DirectoryReader, StoredTopic, read_version
from netserver.version import product_version
from tools.logtool.cli import Group, Settings
from tools.logtool.lib.output import Column
from tools.logtool.lib.stored import stored_topics

COLUMNS = (
    Column("opens", show=lambda opens: "yes" if opens else "no"),
    Column("format"),
    Column("version"),
    Column("oldest_version", "BACK TO"),
    Column("changes"),
)


@click.group(cls=Group)
def upgrade() -> None:
    """Say whether this version can open a directory that another one has written."""


@upgrade.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def check(settings: Settings, directory: Path | None) -> None:
    """Look at DIR, else --data-dir: can this version open it, what would change, and which ones can go back?

    Run it with the logtool of the new version; the server of the old one may run. Exit code 3: it cannot; nothing was
    touched.
    """
    data_dir = directory or settings.need_directory("upgrade check")
    read_version(SystemFiles(), data_dir)
    topics = stored_topics(DirectoryReader(data_dir))
    ignored = [text for topic in topics for text in ignored_settings(topic)]
    changes = "; ".join(ignored) or "nothing"
    if settings.output.form == "table":
        opens = f"version {product_version()} opens {data_dir} (format {FORMAT_VERSION}, {len(topics)} topics)"
        settings.output.note(f"{opens}; what changes: {changes}; the oldest version to go back to: {OLDEST_VERSION}")
        return
    item = {"opens": True, "format": FORMAT_VERSION, "version": product_version(), "oldest_version": OLDEST_VERSION}
    settings.output.items(COLUMNS, [{**item, "changes": changes}])


def ignored_settings(topic: StoredTopic) -> list[str]:
    """Settings of a topic that this version does not take: the server's default is in force instead."""
    found = []
    for name, text in topic.config.items():
        try:
            TopicConfig.from_mapping({name: text})
        except InvalidConfig as error:
            found.append(f"topic {topic.name.decode(errors='replace')}: {error}, the default is in force")
    return found

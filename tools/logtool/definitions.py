"""`definitions`: exports topics with their settings as a document, and brings a log to what a document says.

The document::

    {"schema": 1, "topics": [{"name": "clicks", "partitions": 4, "settings": {"retention": "7d"}}]}

A name that is no UTF-8 is ``name_base64``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from engine.config import TopicConfig, spelled_settings
from engine.errors import InvalidConfig
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.changes import FileChanges, ServerChanges, changes
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import DEFINITIONS_BYTES_MAX
from tools.logtool.lib.output import JSON_SCHEMA, Column, bytes_fields, json_bytes, name_text, number
from tools.logtool.topics import confirm, name_of, topic_items

DEFAULT = "default"
"""As a setting's value: the server's default is followed again."""

Action = Literal["create", "change", "none", "conflict"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A topic as the document has it."""

    name: bytes
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done about one topic. `settings` are those that change, DEFAULT for those that go."""

    wanted: Definition
    action: Action
    settings: Mapping[str, str]
    partitions: int

    def run(self, change: ServerChanges | FileChanges) -> None:
        """Raises Failure, EngineError."""
        if self.action == "create":
            change.create(self.wanted.name, self.wanted.partitions, self.settings)
        elif self.settings:
            change.configure(self.wanted.name, self.settings)

    def item(self) -> dict[str, Any]:
        """For the output."""
        return {
            **bytes_fields("name", self.wanted.name),
            "action": self.action,
            "partitions": self.partitions,
            "settings": dict(self.settings),
        }


def parse(content: bytes) -> list[Definition]:
    """The definitions of a document. Raises ValueError: says which topic, and what is wrong."""
    if not content.strip():
        raise ValueError("it is empty; `definitions export` writes such a file")
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"this is not JSON, as `definitions export` writes it: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != JSON_SCHEMA:
        raise ValueError(f"expected an object with schema {JSON_SCHEMA}, as `definitions export` writes it")
    items = document.get("topics")
    if not isinstance(items, list):
        raise ValueError("topics: expected a list")
    found: dict[bytes, Definition] = {}
    for at, item in enumerate(items):
        definition = _definition(item, f"topics[{at}]")
        if definition.name in found:
            raise ValueError(f"topic {name_text(definition.name)} is there twice")
        try:
            TopicConfig.from_mapping({key: value for key, value in definition.settings.items() if value != DEFAULT})
        except InvalidConfig as error:
            raise ValueError(f"topic {name_text(definition.name)}: {error}") from error
        found[definition.name] = definition
    return list(found.values())


def _definition(item: Any, where: str) -> Definition:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: expected an object")
    name = item.get("name", item.get("name_base64"))
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is missing")
    partitions, own = item.get("partitions", 1), item.get("settings", {})
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise ValueError(f"{where}: partitions: expected a number of at least 1")
    if not isinstance(own, dict) or not all(isinstance(value, str) for value in own.values()):
        raise ValueError(f'{where}: settings: expected an object of texts, such as {{"retention": "7d"}}')
    unknown = set(item) - {"name", "name_base64", "partitions", "settings"}
    if unknown:
        raise ValueError(f"{where}: unknown member {min(unknown)!r}")
    return Definition(name_of(item), partitions, spelled_settings(own))


def _same(key: str, one: str | None, other: str) -> bool:
    """Whether two texts mean the same value: 7d and 168h do."""
    if one is None or other == DEFAULT:
        return (one or DEFAULT) == other
    return TopicConfig.from_mapping({key: one}) == TopicConfig.from_mapping({key: other})


def plan(wanted: list[Definition], present: list[dict[str, Any]]) -> list[Step]:
    """What is to be done, topic by topic; `present` as the admin API has topics."""
    there = {name_of(item): item for item in present}
    steps = []
    for definition in wanted:
        item = there.get(definition.name)
        if item is None:
            own = {key: value for key, value in definition.settings.items() if value != DEFAULT}
            steps.append(Step(definition, "create", own, definition.partitions))
            continue
        if item["partitions"] != definition.partitions:
            steps.append(Step(definition, "conflict", {}, item["partitions"]))
            continue
        own = item["settings"]
        target = dict.fromkeys(own, DEFAULT) | dict(definition.settings)
        different = {key: value for key, value in target.items() if not _same(key, own.get(key), value)}
        steps.append(Step(definition, "change" if different else "none", different, definition.partitions))
    return steps


@click.group(cls=Group)
def definitions() -> None:
    """Topics and their settings as a file: for another server, or for version control."""


@definitions.command("export")
@click.argument("pattern", metavar="[GLOB]", required=False)
@click.pass_obj
def export(settings: Settings, pattern: str | None) -> None:
    """Print the topics (or those whose name matches GLOB) with their own settings, as JSON. From files or server.

    A line for each topic, in the order of their names, so that two exports can be compared by diff. Records are not in
    it: `logtool backup` copies them.
    """
    lines = [
        json_bytes({key: item[key] for key in ("name", "name_base64", "partitions") if key in item})[:-1]
        + b',"settings":'
        + json_bytes(dict(sorted(item["settings"].items())))
        + b"}"
        for item in sorted(topic_items(settings, pattern), key=name_of)
    ]
    head = b'{"schema":%d,"topics":[' % JSON_SCHEMA
    settings.output.write(head + (b"\n" if lines else b"") + b",\n".join(lines) + (b"\n" if lines else b"") + b"]}\n")
    settings.output.flush()


COLUMNS = (
    Column("name", "TOPIC"),
    Column("action"),
    number("partitions"),
    Column("settings", show=lambda own: " ".join(f"{key}={value}" for key, value in own.items()) or "-"),
)


@definitions.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.pass_obj
def import_definitions(settings: Settings, file: Any, dry_run: bool) -> None:
    """Make the topics of FILE that are missing, and give those that are there its settings.

    Through the server, or on the files when none is running. Settings that FILE does not have follow the server's
    default again. Nothing is deleted, and topics that FILE does not name stay as they are. Where the number of
    partitions differs nothing at all is changed. Asks before topics that are there change, or needs --yes: a shorter
    retention removes records. It can be run again.
    """
    content = file.read(DEFINITIONS_BYTES_MAX + 1)
    if len(content) > DEFINITIONS_BYTES_MAX:
        raise Failure(errors.NO_ROOM, "too_large", f"{file.name} has more than {DEFINITIONS_BYTES_MAX} bytes")
    try:
        wanted = parse(content)
    except (ValueError, RecursionError) as error:
        raise Failure(errors.USAGE, "invalid", f"{file.name}: {error}") from error
    steps = plan(wanted, topic_items(settings, None))
    conflicts = [name_text(step.wanted.name) for step in steps if step.action == "conflict"]
    changed = sum(step.action == "change" for step in steps)
    if not dry_run and not conflicts:
        if changed:
            topics = "1 topic" if changed == 1 else f"{changed} topics"
            confirm(settings, f"settings of {topics} will change (--dry-run shows them)", Path(file.name).name)
        _apply(settings, steps)
    items = [step.item() for step in steps]
    if settings.output.form == "table":
        for item in items:
            item["name"] = name_text(name_of(item))
    settings.output.items(COLUMNS, items, dry_run=dry_run)
    if conflicts:
        text = f"nothing was changed: the number of partitions is another one for {', '.join(conflicts[:10])}"
        raise Failure(errors.CONFLICT, "partitions", text, "the number of partitions of a topic cannot be changed")


def _apply(settings: Settings, steps: list[Step]) -> None:
    todo = [step for step in steps if step.action != "none"]
    if not todo:
        return
    with changes(settings) as change:
        for done, step in enumerate(todo):
            try:
                step.run(change)
            except Exception as error:
                failure = errors.explain(error)
                if failure is None:
                    raise
                text = f"topic {name_text(step.wanted.name)}: {failure} ({done} of {len(todo)} topics were done)"
                raise Failure(failure.exit_code, failure.code, text, "the same import may be run again") from error

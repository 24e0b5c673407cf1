"""`archive-table`: records into a Delta Lake table, while the server runs."""

from __future__ import annotations

from dataclasses import replace

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.errors import USAGE, Failure
from tools.logtool.lib.output import count_text, number, size_text
from tools.logtool.lib.progress import BytesProgress

COLUMNS = (number("version"), number("records"), number("bytes", show=size_text))


@click.command("archive-table", cls=Command)
@click.argument("uri", metavar="URI")
@click.option("--topic", "globs", metavar="GLOB", multiple=True, help="Topics, all by default; may be repeated.")
@click.option("--commit-bytes", metavar="SIZE", help="Bytes of segment files for one commit; 1g.")
@click.option(
    "--archive", metavar="URI", help="Where segments are archived: take what retention has removed from there."
)
@click.option("--allow-loss", is_flag=True, help="Go on, with a warning, where retention was faster.")
@click.option("--skip-damage", is_flag=True, help="Leave damaged batches out, with a warning, and go on.")
@click.pass_obj
def archive_table(
    settings: Settings,
    uri: str,
    globs: tuple[str, ...],
    commit_bytes: str | None,
    archive: str | None,
    allow_loss: bool,
    skip_damage: bool,
) -> None:
    """Add to the Delta Lake table at URI the records that it does not have yet; make it if it is not there.

    URI is a directory or what Delta Lake understands: s3://BUCKET/PREFIX, gs://, abfss://. Each record is there once,
    whenever a run is killed or repeated: rows and how far they reach are one commit. To be run at intervals shorter
    than retention. docs/arrow.md has the columns, and how DuckDB, Polars and others read them.
    """
    try:
        from tools.spark.archive.table import Commit, keep
        from tools.spark.limits import TABLE_COMMIT_BYTES
        from tools.spark.source.options import parse, read_size, topic_pattern
    except ImportError as problem:
        text = f"{problem.name} is missing: install the extra delta, in a checkout pip install -e '.[delta]'"
        raise Failure(USAGE, "not_installed", text) from problem
    given = {
        "path": str(settings.need_directory("archive-table")),
        "failOnDataLoss": str(not allow_loss),
        "onCorruption": "skip" if skip_damage else "fail",
    }
    if globs:
        given["subscribePattern"] = topic_pattern(globs)
    if archive is not None:
        given["archive"] = archive
    options = replace(
        parse(given),
        loss_hint="--allow-loss goes on without them",
        damage_hint="--skip-damage goes on behind them",
    )
    try:
        size_bytes = TABLE_COMMIT_BYTES if commit_bytes is None else read_size(commit_bytes)
    except ValueError:
        raise click.UsageError(f"--commit-bytes is {commit_bytes!r}; expected a size such as 64m, above 0") from None
    commits: list[Commit] = []
    with BytesProgress(settings.output, "added") as progress:

        def done(commit: Commit) -> None:
            commits.append(commit)
            progress.add(commit.size_bytes)

        table = keep(options, uri, size_bytes, done)
    items = [{"version": one.version, "records": one.records, "bytes": one.size_bytes} for one in commits]
    settings.output.items(COLUMNS, items)
    added = count_text(sum(one.records for one in commits), "record")
    settings.output.note(
        f"{added} added in {count_text(len(commits), 'commit')}; the table has version {table.version}"
    )

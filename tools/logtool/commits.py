"""`commits`: list the last batch of each writer (a Spark sink), abandon the rest of one that cannot be finished."""

from __future__ import annotations

from typing import Any

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import admin_of
from tools.logtool.lib.changes import changes
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, name_text, number, time_text
from tools.logtool.topics import confirm

COLUMNS = (
    Column("writer", show=lambda value: name_text(str(value).encode("utf-8", "replace"))),
    number("batch"),
    Column("status"),
    number("parts"),
    number("records"),
    Column("time_ms", "TIME", show=time_text),
    number("needed_files", "NEEDED"),
    number("missing_files", "MISSING"),
)


@click.group(cls=Group)
def commits() -> None:
    """List the batches of sinks (Spark), and give up the rest of one that cannot be finished."""


def _stored(settings: Settings) -> list[dict[str, Any]]:
    from engine.directory_layout import STATE
    from engine.state.store import StateReader
    from engine.state.writer_ledger import STAGED, read_entries

    data_dir = settings.need_directory()
    state = StateReader.open(data_dir / STATE)
    try:
        entries = sorted(read_entries(state))
    finally:
        state.close()
    return [
        entry.item()
        | {
            "needed_files": len(entry.needed),
            "missing_files": sum([not (data_dir / STAGED / name).exists() for name in entry.needed]),
        }
        for entry in entries
    ]


def _items(settings: Settings) -> list[dict[str, Any]]:
    admin = admin_of(settings)
    if admin is not None:
        try:
            return list(admin.call("GET", "/v1/commits").get("items", []))
        except Failure as failure:
            if settings.data_dir is None or failure.exit_code != errors.UNREACHABLE:
                raise
    return _stored(settings)


def _status(item: dict[str, Any]) -> str:
    return "complete" if item["complete"] else "abandoned" if item["abandoned"] else "incomplete"


@commits.command("list")
@click.pass_obj
def list_commits(settings: Settings) -> None:
    """List the last batch of each writer. From server or files.

    An incomplete one is partly in the log, and goes on when its writer repeats it; MISSING are staged files that it
    needs for that and that are gone.
    """
    settings.output.items(COLUMNS, [item | {"status": _status(item)} for item in _items(settings)])


@commits.command()
@click.argument("writer")
@click.pass_obj
def abandon(settings: Settings, writer: str) -> None:
    """Give up the rest of WRITER's last batch, which is only partly in the log.

    The records that are in the log stay, the others never come; the writer's next batch is taken then. Whoever repeats
    the batch is told that it was abandoned. Through the server, or on the files. Asks, or needs --yes.
    """
    found = [item for item in _items(settings) if item["writer"] == writer]
    if not found:
        raise Failure(errors.NOT_FOUND, "unknown_writer", f"no writer {writer!r}", "`logtool commits list` shows them")
    (item,) = found
    batch, records = item["batch"], item["records"]
    if _status(item) != "incomplete":
        raise Failure(errors.CONFLICT, "not_incomplete", f"batch {batch} of {writer!r} is {_status(item)}")
    plan = f"the rest of batch {batch} of {name_text(writer.encode())} is given up, {records} of its records stay"
    confirm(settings, plan, writer)
    with changes(settings) as change:
        change.abandon_batch(writer, batch)
    if settings.output.form == "table":
        settings.output.note(plan)
    else:
        told = {"writer": writer, "batch": batch, "records": records}
        settings.output.items([Column(key) for key in told], [told])

"""`repair`: plans what has to be done and given up so that a damaged directory can be served, and does it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.errors import UNREACHABLE, USAGE, Failure, Finding
from tools.logtool.lib.output import Column, Output, bytes_fields, name_text, number

LONG_HEX = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{17,}\b")
"""Damaged bytes as they are in full in the other forms."""
COLUMNS = (
    Column("topic"),
    number("partition"),
    Column("kind"),
    number("first"),
    number("last"),
    Column("problem"),
    Column("action"),
    Column("file"),
)


def steps_of(data_dir: Path, *, apply: bool) -> list[dict[str, Any]]:
    """Runs the repair under the directory's lock. Raises Failure, EngineError, OSError."""
    from engine.files.lock import DirectoryLock
    from engine.repair import Repair

    if not (data_dir / "topics").is_dir():
        raise Failure(UNREACHABLE, "data_directory", f"{data_dir} is no data directory (it has no topics)")
    lock = DirectoryLock(data_dir, file=apply)
    try:
        steps = Repair(data_dir.absolute(), apply=apply, now_ms=time.time_ns() // 1_000_000).run()
    finally:
        lock.close()
    items = []
    for step in steps:
        item: dict[str, Any] = {
            "kind": step.kind,
            "file": str(step.path),
            "problem": step.problem,
            "action": step.action,
        }
        item |= {"changes": step.changes, "wrong": step.is_wrong}
        if step.partition is not None or step.topic:
            item |= bytes_fields("topic", step.topic)
        if step.partition is not None:
            item["partition"] = step.partition
        if step.last_seq >= step.first_seq:
            item |= {"first": step.first_seq, "last": step.last_seq}
        items.append(item)
    return items


def plan_of(data_dir: Path) -> list[dict[str, Any]]:
    """What `repair --apply` would do; nothing is changed. Raises Failure, EngineError, OSError."""
    return steps_of(data_dir, apply=False)


def show_plan(output: Output, items: list[dict[str, Any]]) -> None:
    """The steps as a table, or in the form that was asked for."""
    if output.form == "table":
        items = [item | {"problem": LONG_HEX.sub(r"\1...", item["problem"])} for item in items]
        items = [item | ({"topic": name_text(item["topic"].encode())} if "topic" in item else {}) for item in items]
    output.items(COLUMNS, items)


@click.command(cls=Command)
@click.argument("place", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--apply", is_flag=True, help="Do it. Without this nothing is changed.")
@click.pass_obj
def repair(settings: Settings, place: Path | None, apply: bool) -> None:
    """Show what has to be done, and which records are given up, so that DIR (else --data-dir) can be served.

    Nothing is ever deleted: what cannot be used is moved aside, what is cut off is kept in DIR/set-aside. Refused while
    a server has the directory. Without --apply exit code 1 says that something is wrong. The rest of a write that a
    crash has interrupted is not wrong: nobody was told that it is stored.
    """
    data_dir = place or settings.need_directory("repair")
    output = settings.output
    items = plan_of(data_dir)
    changes = [item for item in items if item["changes"]]
    given_up = sum(item["last"] - item["first"] + 1 for item in items if "last" in item)
    if not apply:
        show_plan(output, items)
        wrong = sum(item["wrong"] for item in items)
        output.note(
            f"{wrong} finding{'' if wrong == 1 else 's'}, {len(changes)} to be mended, "
            f"{given_up} record numbers given up" + ("; nothing was changed: --apply does it" if changes else "")
        )
        if wrong:
            raise Finding
        return
    if changes and not settings.yes:
        show_plan(output, items)
        _confirm(settings, data_dir, len(changes), given_up)
    done = steps_of(data_dir, apply=True)
    show_plan(output, done)
    output.note(f"{len([item for item in done if item['changes']])} things mended, {given_up} record numbers given up")


def _confirm(settings: Settings, data_dir: Path, count: int, given_up: int) -> None:
    import sys

    what = f"{count} things will be mended in {data_dir}, {given_up} record numbers are given up"
    if settings.no_input or not sys.stdin.isatty():
        raise Failure(USAGE, "unconfirmed", f"{what}; say --yes if that is meant")
    click.confirm(f"{what}. Go on?", abort=True, err=True)

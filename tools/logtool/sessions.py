"""`sessions`: list, show, drop."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import admin_of
from tools.logtool.lib.changes import changes
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, number, size_text
from tools.logtool.lib.watching import watchable
from tools.logtool.topics import confirm


def _known(value: Any) -> str:
    return "-" if value is None else "yes" if value is True else "no" if value is False else str(value)


COLUMNS = (
    Column("uuid"),
    Column("application"),
    Column("topic", show=_known),
    number("last_id", "LAST"),
    number("acknowledged_id", "ACKED"),
    number("left", show=_known),
    number("stored_bytes", "STORED", size_text),
    Column("connected", show=_known),
    number("expires_in_seconds", "EXPIRES", show=lambda value: "-" if value is None else f"{value:.0f} s"),
)


@click.group(cls=Group)
def sessions() -> None:
    """List, show and remove sessions of JSON stream (reliably) clients; for others see `connections`."""


def _stored_items(settings: Settings) -> list[dict[str, Any]]:
    from engine.reader import DirectoryReader
    from netserver.reliably.describe import session_item
    from tools.logtool.lib.stored import stored_topics
    from tools.logtool.lib.stored_subscriptions import stored_sessions

    data_dir = settings.need_directory()
    names = {topic.id: topic.name for topic in stored_topics(DirectoryReader(data_dir))}
    return [session_item(info, names.get, is_served=False) for info in stored_sessions(data_dir)]


def _items(settings: Settings) -> list[dict[str, Any]]:
    """From the server that runs on the address, else from the files."""
    admin = admin_of(settings)
    if admin is not None:
        return list(admin.call("GET", "/v1/sessions").get("items", []))
    return _stored_items(settings)


@sessions.command("list")
@click.argument("pattern", metavar="[GLOB]", required=False)
@watchable
@click.pass_obj
def list_sessions(settings: Settings, pattern: str | None) -> None:
    """List the sessions, or those whose uuid matches GLOB (*, ?, [..]). From server or files."""
    found = [item for item in _items(settings) if pattern is None or fnmatchcase(item["uuid"], pattern)]
    settings.output.items(COLUMNS, sorted(found, key=lambda item: str(item["uuid"])))


@sessions.command()
@click.argument("uuid")
@click.pass_obj
def show(settings: Settings, uuid: str) -> None:
    """Show one session. From server or files."""
    for item in _items(settings):
        if item["uuid"] == uuid:
            if settings.output.form == "table":
                settings.output.fields({key: _known(value) for key, value in item.items()})
            else:
                settings.output.items(COLUMNS, [item])
            return
    raise Failure(errors.NOT_FOUND, "unknown_session", f"no session {uuid!r}", "`logtool sessions list` shows them")


@sessions.command()
@click.argument("uuid")
@click.pass_obj
def drop(settings: Settings, uuid: str) -> None:
    """Remove a session: its connection ends, and its client cannot resume. Through the server, or on the files."""
    confirm(settings, f"session {uuid} will be removed", uuid)
    with changes(settings) as change:
        change.drop_session(uuid)
    if settings.output.form == "table":
        settings.output.note(f"removed {uuid}")
    else:
        settings.output.items([Column("dropped")], [{"dropped": uuid}])

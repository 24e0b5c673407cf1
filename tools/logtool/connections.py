"""`connections`: who is connected, and ending one of them. Server only."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, number, size_text, time_text
from tools.logtool.lib.watching import watchable

COLUMNS = (
    number("number", "ID"),
    Column("protocol"),
    Column("peer"),
    Column("opened"),
    number("bytes_in", "IN", size_text),
    number("bytes_out", "OUT", size_text),
    number("pending_bytes", "PENDING", size_text),
    Column("held", "NOT READ FOR", show=lambda reasons: ", ".join(reasons) or "-"),
)


@click.group(cls=Group)
def connections() -> None:
    """List and end TCP connections of all protocols. Through the server."""


@connections.command("list")
@click.argument("pattern", metavar="[GLOB]", required=False)
@watchable
@click.pass_obj
def list_connections(settings: Settings, pattern: str | None) -> None:
    """List the open connections, or those whose protocol or peer matches GLOB, oldest first."""
    items: list[dict[str, Any]] = []
    for item in need_admin(settings).call("GET", "/v1/connections").get("items", []):
        peer, protocol = str(item["peer"]), str(item["protocol"])
        if pattern is not None and not (fnmatchcase(peer, pattern) or fnmatchcase(protocol, pattern)):
            continue
        opened_ms = int(float(item["opened"]) * 1000)
        items.append(item | {"opened": time_text(opened_ms), "opened_ms": opened_ms})
    settings.output.items(COLUMNS, items)


@connections.command()
@click.argument("connection_id", metavar="ID", type=click.IntRange(0))
@click.pass_obj
def close(settings: Settings, connection_id: int) -> None:
    """End one connection at once. Most clients connect again by themselves."""
    try:
        need_admin(settings).call("DELETE", f"/v1/connections/{connection_id}")
    except Failure as failure:
        if failure.exit_code == errors.NOT_FOUND:
            hint = "`logtool connections list` shows what is there"
            raise Failure(errors.NOT_FOUND, "unknown_connection", f"no connection {connection_id}", hint) from None
        raise
    if settings.output.form == "table":
        settings.output.note(f"closed {connection_id}")
    else:
        settings.output.items([Column("closed")], [{"closed": connection_id}])

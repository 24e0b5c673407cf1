"""Who is connected, and the sessions of the JSON streaming protocol; both can be ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from netserver.console.limits import CONSOLE_ROWS
from netserver.console.pages import Answer, GoTo, Page, Visit

if TYPE_CHECKING:
    from netserver.admin.api import Api


class ConnectionViews:
    """See the module."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {
            "GET connections": self.connections,
            "POST connections/NAME/close": self.close,
            "GET sessions": self.sessions,
            "POST sessions/NAME/end": self.end,
        }

    async def connections(self, visit: Visit) -> Answer:
        """A page of open connections, oldest first."""
        wanted, at = visit.query.get("text", ""), place_of(visit)
        items, total = await self._api.connections_page(wanted, at, CONSOLE_ROWS)
        values = {"items": items, "wanted": wanted, "at": at, "total": total, "rows": CONSOLE_ROWS}
        return Page("connections.html", "Connections", values)

    async def close(self, visit: Visit) -> Answer:
        """Abort one."""
        await self._api.abort_connection(visit.parts[1])
        return GoTo(("connections",), f"Closed connection {visit.parts[1].decode()}.")

    async def sessions(self, visit: Visit) -> Answer:
        """A page of sessions."""
        wanted, at = visit.query.get("text", ""), place_of(visit)
        items, total = await self._api.sessions_page(lambda uuid: wanted in uuid, at, CONSOLE_ROWS)
        values = {"items": items, "wanted": wanted, "at": at, "total": total, "rows": CONSOLE_ROWS}
        return Page("sessions.html", "Sessions", values)

    async def end(self, visit: Visit) -> Answer:
        """Remove one; its connection ends."""
        done = await self._api.drop_session(visit.parts[1])
        return GoTo(("sessions",), f"Ended session {done['dropped']}.")


def place_of(visit: Visit) -> int:
    """The row that a page of a list begins with, as ``at`` says."""
    text = visit.query.get("at", "0")
    return int(text[:10]) if text.isascii() and text.isdigit() else 0

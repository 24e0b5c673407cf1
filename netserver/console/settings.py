"""The configuration in force: every setting, where it comes from, whether a change needs a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from netserver.access.rights import Role
from netserver.config.table import DEFAULT, SECTIONS
from netserver.console.limits import CONSOLE_ROWS
from netserver.console.pages import Answer, Page, Visit
from netserver.contract import contract

if TYPE_CHECKING:
    from netserver.admin.served import Served


class SettingsViews:
    """See the module."""

    def __init__(self, server: Served) -> None:
        self._server = server

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {"GET settings": self.settings}

    async def settings(self, visit: Visit) -> Answer:
        """All of them, or those that were made."""
        config = self._server.config
        made_only = "made" in visit.query
        shown = []
        for section, its in SECTIONS.items():
            rows = [
                {
                    "name": entry.name,
                    "value": value if isinstance(value := entry.native(config), str) else entry.toml(config),
                    "origin": config.origins.get(entry.title, DEFAULT),
                    "help": entry.how.help,
                    "reloads": entry.is_reloadable,
                }
                for entry in its.values()
            ]
            kept = [row for row in rows if not made_only or row["origin"] != DEFAULT]
            if kept:
                shown.append((section, kept))
        names = self._server.access.identities.names if visit.session.identity.has_role(Role.OPERATOR) else {}
        identities = [names[name] for name in sorted(names)[:CONSOLE_ROWS]]
        listed = {"sections": shown, "made_only": made_only, "identities": identities, "promise": contract(config)}
        return Page("settings.html", "Settings", listed | {"restart_needed": self._server.restart_needed})

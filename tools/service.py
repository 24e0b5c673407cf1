"""What the service manager hears of a running server: that it is ready, reloads, stops, and is alive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from netserver.notify import Notifier
from tools.limits import STATUS_S, WATCHDOG_PART

if TYPE_CHECKING:
    from netserver.app import Server


class Service:
    """A server, as its service manager sees it.

    A heart beat is a timer of the event loop: when the loop hangs, it ends, and systemd restarts the server.
    """

    def __init__(self, notifier: Notifier, server: Server) -> None:
        self._notifier = notifier
        self._server = server

    def begin(self) -> None:
        """It serves."""
        self.ready()
        self._beat(asyncio.get_running_loop())

    def ready(self) -> None:
        """It serves, with the configuration that it has now."""
        failed = "" if self._server.reload_success else "; the last reload failed, see the log"
        self._notifier.ready(self._status() + failed)

    def _status(self) -> str:
        connections = sum(counters.connections for counters in self._server.counters.values())
        return (
            f"{connections} connections on {', '.join(self._server.addresses)}; {len(self._server.log.catalog)} topics"
        )

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        watchdog_s = self._notifier.watchdog_s
        alive = ["WATCHDOG=1"] if watchdog_s is not None else []
        self._notifier.tell(*alive, *([f"STATUS={self._status()}"] if self._server.ready else []))
        loop.call_later(min(STATUS_S, (watchdog_s or STATUS_S) * WATCHDOG_PART), self._beat, loop)

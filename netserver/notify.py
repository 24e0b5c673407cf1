"""What the server tells the service manager: systemd's notification protocol.

A datagram of ``NAME=VALUE`` lines to the socket that ``NOTIFY_SOCKET`` names. That is all of the protocol, so it needs
no library. Nothing depends on whether anybody listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

NS_PER_US: Final = 1000


class Notifier:
    """Tells one service manager, or nobody.

    Attributes:
        watchdog_s: within this time it wants to hear of us; None: it does not watch.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._told_at = address
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        is_watched = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
        self.watchdog_s = int(microseconds) / 1e6 if is_watched and address else None

    @property
    def environment(self) -> dict[str, str]:
        """What tells another process of ours the same."""
        watchdog = {"WATCHDOG_USEC": str(int(self.watchdog_s * 1e6))} if self.watchdog_s is not None else {}
        return {"NOTIFY_SOCKET": self._told_at, **watchdog} if self._told_at else {}

    def tell(self, *lines: str) -> None:
        """Send lines, at once or not at all: the event loop does not wait for a service manager."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to,
        ):
            to.sendto("\n".join(lines).encode(), self._address)

    def ready(self, status: str) -> None:
        """It serves, also: it has reloaded."""
        self.tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """It reads its configuration again."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // NS_PER_US
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading the configuration")

    def stopping(self) -> None:
        """It finishes what is outstanding, and ends."""
        self.tell("STOPPING=1", "STATUS=finishing what is outstanding")

"""Listening sockets that somebody else has opened: systemd (socket activation), or the server that this one follows.

They stay open while no server runs, and who connects meanwhile waits in them for the next one. A listener takes a
socket only when it has the address of the configuration: who may reach a listener is decided there, nowhere else.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, MutableMapping
from typing import Final, NamedTuple

from netserver.errors import ConfigError

log = logging.getLogger(__name__)
FIRST_FD: Final = 3
"""Where systemd's descriptors begin."""
HANDED_OVER: Final = "QUINTLOG_HANDED_OVER"
"""``NAME=DESCRIPTOR,...`` of the server before this one."""


class Unanswered(NamedTuple):
    """A datagram that begins a connection and came to a server that begins none any more: the next one answers it.

    Attributes:
        at: the address of the socket it came to.
        sender: where it came from.
    """

    at: tuple[str | int, ...]
    sender: tuple[str | int, ...]
    data: bytes


class Inherited:
    """See the module.

    Attributes:
        unanswered: datagrams that came to the server before.
    """

    def __init__(self) -> None:
        self.unanswered: list[Unanswered] = []
        self._sockets: list[tuple[str, socket.socket]] = []

    def find(self, environment: MutableMapping[str, str]) -> None:
        """Take what the environment tells of, and take that out of it: children of this process get neither.

        Raises:
            ConfigError: the environment names a descriptor that is no socket.
        """
        told = [environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", HANDED_OVER)]
        pid, count, names, handed = told
        pairs: list[tuple[str, str]] = [
            (name, fd) for name, _, fd in (part.partition("=") for part in handed.split(",") if part)
        ]
        if pid == str(os.getpid()) and count.isdecimal():
            named = [*names.split(":"), *[""] * int(count)]
            pairs += [(named[at], str(FIRST_FD + at)) for at in range(int(count))]
        for name, fd in pairs:
            try:
                os.set_inheritable(int(fd), False)
                found = socket.socket(fileno=int(fd))
                found.setblocking(False)
            except (OSError, ValueError) as error:
                raise ConfigError(f"descriptor {fd}, which was to be a listening socket, is none: {error}") from None
            self._sockets.append((name, found))

    def take(self, name: str, family: int, kind: int, where: tuple[str | int, ...]) -> socket.socket | None:
        """The socket of a listener for an address; None: there is none. Any port will do where 0 is wanted."""
        for own in (True, False):  # one that has another name, or none, is known by its port
            for pair in self._sockets:
                title, found = pair
                if (title == name) == own and (own or where[1]) and _is_at(found, family, kind, where):
                    self._sockets.remove(pair)
                    return found
        return None

    def take_unanswered(self, at: tuple[str | int, ...]) -> list[Unanswered]:
        """The datagrams that came to the socket with this address."""
        taken = [one for one in self.unanswered if one.at == at]
        self.unanswered = [one for one in self.unanswered if one.at != at]
        return taken

    def close_rest(self) -> None:
        """Close what no listener has taken."""
        for name, rest in self._sockets:
            log.warning("the inherited socket %s at %s is not used: no listener has this address", name, _told(rest))
            rest.close()
        self._sockets.clear()
        self.unanswered.clear()


INHERITED: Final = Inherited()
"""Those of this process."""


def _is_at(found: socket.socket, family: int, kind: int, where: tuple[str | int, ...]) -> bool:
    if found.family != family or found.type != kind:
        return False
    host, port = found.getsockname()[:2]
    return bool(host == where[0] and where[1] in (0, port))


def _told(found: socket.socket) -> str:
    try:
        return str(found.getsockname())
    except OSError as error:
        return str(error)


def handed_over(sockets: Iterable[tuple[str, socket.socket]]) -> str:
    """The variable's text for the next server."""
    return ",".join(f"{name}={found.fileno()}" for name, found in sockets)

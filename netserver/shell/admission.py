"""What becomes of a connection by who its peer is: not let in, or let go when the peer may do less than before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from netserver.limits import REFUSED_LINGER_S

if TYPE_CHECKING:
    from netserver.access.access import Visitor
    from netserver.access.rights import Identity
    from netserver.shell.counters import Counters

TURNED_AWAY: Final = "it is not let in"
WITHDRAWN: Final = "its rights were withdrawn"


class Admitted(Protocol):
    """A connection, as this module sees it; see ``netserver.shell.connection``."""

    loop: asyncio.AbstractEventLoop
    counters: Counters
    visitor: Visitor
    closed: bool
    on_narrowed: Callable[[], None] | None

    def hold(self, reason: str) -> None:
        """Stop reading."""

    def known(self) -> None:
        """It is known whose it is."""

    def abort(self, reason: str = "", kind: str = "server") -> None:
        """Close at once."""

    def call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a session's function."""


def admit(connection: Admitted) -> None:
    """Read it, or not yet; of nobody that is let in here nothing is read, and a little later it is closed."""
    if not connection.visitor.is_turned_away:
        connection.known()
        return
    turn_away(connection, "CONNECT", "it is nobody who is let in here")


def turn_away(connection: Admitted, request: str, why: str) -> None:
    """Read no more of it, and close it a little later: clients redial at once."""
    connection.visitor.refused(request)
    connection.counters.auth_failures += 1
    connection.hold(TURNED_AWAY)
    connection.loop.call_later(REFUSED_LINGER_S, connection.abort, why, "refused")


def rights_changed(connection: Admitted, old: Identity | None, new: Identity | None) -> None:
    """Whoever may do less than before has to come again, and everything is looked at again; more counts at once."""
    if connection.closed or (new is not None and old is not None and not old.loses_by(new)):
        return
    if new is not None and connection.on_narrowed is not None:
        connection.call(connection.on_narrowed)
    else:
        connection.abort(WITHDRAWN, "revoked")

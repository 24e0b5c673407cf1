"""SASL: a client says who it is, by the name of an identity and its key (PLAIN, RFC 4616).

Two requests, once for each connection: SaslHandshake names the mechanism, SaslAuthenticate has ``\\0name\\0key``.
Before that nothing else is answered but ApiVersions, unless the client's certificate or address says who it is. What is
wrong is answered, the connection is closed behind that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from netserver.shell.admission import turn_away

from .errors import Code, FormatError
from .limits import LOGIN_REQUEST_BYTES_MAX, LOGIN_S
from .schema import Values
from .tables import Key

if TYPE_CHECKING:
    from netserver.shell.connection import Connection

    from .call import Call
    from .codec import Head

PLAIN: Final = "PLAIN"
BEFORE: Final = frozenset((Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE))
"""What nobody in particular may ask."""
WRONG: Final = "no identity has this user and password: the user is its name in the access file, the password its key"
NO_KEYS: Final = (
    "it wants to log in, but no key counts here: that needs [access] file, and key among [kafka] clients if these are "
    "set; without a login security.protocol is SSL or PLAINTEXT"
)


class Login:
    """How far a connection has got with it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_begun = False
        self._is_done = False
        self._timer: asyncio.TimerHandle | None = None
        visitor = connection.visitor
        if visitor.identity is None and not visitor.is_turned_away:
            self._timer = connection.loop.call_later(LOGIN_S, connection.guarded(self._too_slow))

    def admits(self, head: Head, size_bytes: int) -> bool:
        """Whether a request of somebody unknown is read; if not, it ends the connection. Raises FormatError."""
        if head.key not in BEFORE:
            why = f"{head.key.name} of somebody who is unknown, and has not logged in with SASL"
            turn_away(self._connection, head.key.name, why)
            return False
        if size_bytes > LOGIN_REQUEST_BYTES_MAX:
            raise FormatError(f"{head.key.name} of {size_bytes} bytes before the login")
        return True

    def end(self) -> None:
        """The client is known, or gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handshake(self, call: Call) -> Values:
        """The mechanism is agreed on."""
        if self._is_done or not call.visitor.may_log_in:
            call.ends_by = "it wants to log in again" if self._is_done else NO_KEYS
            return {"error": Code.SASL_STATE, "mechanisms": ()}
        if call.body["mechanism"] != PLAIN:
            call.ends_by = f"it wants to log in by {call.body['mechanism'][:20]!r}, offered is {PLAIN}"
            return {"error": Code.UNSUPPORTED_MECHANISM, "mechanisms": (PLAIN,)}
        self._is_begun = True
        return {"error": Code.NONE, "mechanisms": (PLAIN,)}

    async def authenticate(self, call: Call) -> Values:
        """The key: whose it is, or an answer that comes the later the more wrong ones there were."""
        if not self._is_begun or self._is_done:
            call.ends_by = "SaslAuthenticate out of its order"
            return {"error": Code.SASL_STATE, "message": "SaslHandshake comes first, and a login once"}
        connection, visitor = self._connection, call.visitor
        self._is_done = True
        shown = _shown(call.body["token"])
        delay_s = 0.0
        if shown is None:
            visitor.refused("AUTH")
        else:
            delay_s = visitor.log_in(*shown)
            if visitor.identity is not None:
                self.end()
                connection.known()
                return {"error": Code.NONE, "message": None}
        connection.counters.auth_failures += 1
        call.ends_by = "its login has failed"
        if delay_s:
            call.on_ending = partial(connection.abort, call.ends_by, "refused")  # else hanging up would shorten it
            await asyncio.sleep(delay_s)
        return {"error": Code.WRONG_KEY, "message": visitor.why_nobody or WRONG}

    def _too_slow(self) -> None:
        self._timer = None
        self._connection.close("no login in time", "handshake")


def _shown(token: bytes) -> tuple[str, str] | None:
    """Key and name of ``[authzid] \\0 name \\0 key``; None: it is none, or asks to be somebody else than it shows."""
    if len(token) > LOGIN_REQUEST_BYTES_MAX:
        return None
    try:
        acts_as, name, key = token.decode().split("\0")
    except ValueError:  # no UTF-8, or not three parts
        return None
    return (key, name) if acts_as in ("", name) else None


async def sasl_handshake(call: Call) -> Values:
    """See ``Login``."""
    return call.login.handshake(call)


async def sasl_authenticate(call: Call) -> Values:
    """See ``Login``."""
    return await call.login.authenticate(call)

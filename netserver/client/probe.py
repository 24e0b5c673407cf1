"""Tells whether a server of the client's protocol answers at an address.

A port of another protocol takes the connection too, and then waits for the rest of what looks like a long frame,
closes, or answers with bytes that mean nothing here. A client that has once been answered in its protocol redials
through all of that; one that never was says so and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from netserver.client.recognition import Found
from netserver.client.tls import ClientTls
from netserver.errors import ConnectionFailed, ProtocolError, QuintlogError, TlsFailed, WrongServer
from netserver.limits import SILENT_CLOSES_MAX


class Proof:
    """What is known of the server at one address.

    Args:
        protocol: the protocol's name, for people.
        where: ``HOST:PORT``.
        limit_s: how long the first answer may take.

    Attributes:
        given: a server at this address has once answered in the protocol.
    """

    def __init__(self, protocol: str, where: str, limit_s: float) -> None:
        self.given = False
        self._protocol = protocol
        self._where = where
        self._limit_s = limit_s
        self._silent_closes = 0
        self._timer: asyncio.TimerHandle | None = None

    def give(self) -> None:
        """An answer in the protocol has come."""
        self.given = True
        self.stop()

    def expect(self, silent: Callable[[WrongServer], None]) -> None:
        """Something was asked that any server of the protocol answers; ``silent`` is called when nothing comes."""
        if not self.given and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._limit_s, lambda: silent(self.missing(f"nothing came for {self._limit_s:g} s"))
            )

    def stop(self) -> None:
        """Expect nothing more for now: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def missing(self, why: str) -> WrongServer:
        """The error that says that it is another server."""
        return WrongServer(
            f"{self._where} answers, but not as {self._protocol}; is it the port of another protocol? ({why})"
        )

    def recognised(self, found: Found, tls: ClientTls | None) -> ConnectionFailed | None:
        """The error that says what is really there; None: that is not certain.

        Args:
            tls: what the client speaks.
        """
        if found.tls and tls is None:
            return TlsFailed(f'{self._where} speaks TLS: give ca= (the file of its authority, or "system")', "tls")
        without = ", without TLS" if tls is not None and not found.tls else ""
        if found.protocol and found.protocol != self._protocol:
            return WrongServer(
                f"{self._where} answers, but not as {self._protocol}: it speaks {found.protocol}{without}"
            )
        if tls is not None and found.tls is False:
            text = f'{self._where} does not speak TLS: leave out ca= and cert=, or say ca="off"'
            return TlsFailed(f"{text} (it speaks {found.protocol})" if found.protocol else text, "plain")
        if tls is not None and found.tls and not found.protocol and not tls.has_certificate:
            text = f"{self._where} speaks TLS, but gives no answer; it may want a client certificate: cert= and key="
            return TlsFailed(text, "wanted")
        return None

    def judge(self, reason: QuintlogError) -> ConnectionFailed | None:
        """Whether the end of a connection shows that no server of this protocol is there; None: it does not."""
        self.stop()
        if self.given:
            return None
        if isinstance(reason, WrongServer | TlsFailed):
            return reason
        if isinstance(reason, ProtocolError):
            return self.missing(str(reason).removeprefix(f"from {self._where}: "))
        if isinstance(reason, ConnectionFailed):
            self._silent_closes += 1
            if self._silent_closes >= SILENT_CLOSES_MAX:
                return self.missing(
                    "it closes each connection without an answer; it may have no room for more, or not let in this one"
                )
        return None

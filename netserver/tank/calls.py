"""Requests of the TANK client that are no Produce: sent, answered by request id, repeated on a new connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any, TypeVar

from netserver.errors import ProtocolError, QuintlogError, Timeout

from .codec import encode_request
from .messages import Request, Response

T = TypeVar("T")


class Call:
    """One request that waits for its answer.

    Attributes:
        frame: its bytes.
        is_repeatable: sent again on a new connection; else it fails with the old one.
    """

    __slots__ = ("_convert", "_timer", "frame", "future", "is_repeatable", "name")

    def __init__(self, name: str, frame: bytes, convert: Callable[[Any], object], is_repeatable: bool) -> None:
        self.name = name
        self.frame = frame
        self.is_repeatable = is_repeatable
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._convert = convert
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, timeout_s: float) -> None:
        """Fail unless it is answered in time."""
        problem = Timeout(f"{self.name}: no answer within {timeout_s:g} s")
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.fail, problem)

    def answer(self, response: Response) -> None:
        """The answer is here; it is converted at once, since its chunks lie in the receive buffer."""
        if not self.future.done():
            try:
                self.future.set_result(self._convert(response))
            except QuintlogError as error:
                self.future.set_exception(error)
            except ValueError as error:  # a bundle that is none: another connection would bring the same
                self.future.set_exception(ProtocolError(f"{self.name}: {error}"))
        self.close()

    def fail(self, error: QuintlogError) -> None:
        """There will be no answer."""
        if not self.future.done():
            self.future.set_exception(error)
        self.close()

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self._timer is not None:
            self._timer.cancel()


class Calls:
    """The requests of one client that wait for their answers, by request id.

    Args:
        write: sends bytes if there is a connection, else drops them.
        taken: further ids that are in use.
    """

    def __init__(self, write: Callable[[bytes], None], taken: Container[int] = ()) -> None:
        self._write = write
        self._taken = taken
        self._calls: dict[int, Call] = {}
        self._next = 0

    def number(self) -> int:
        """An id for the next request: a u32 that nobody waits for."""
        while True:
            self._next = (self._next + 1) & 0xFFFF_FFFF
            if self._next not in self._calls and self._next not in self._taken:
                return self._next

    async def ask(
        self,
        name: str,
        make: Callable[[int], Request],
        convert: Callable[[Any], T],
        *,
        timeout_s: float,
        is_repeatable: bool = True,
    ) -> T:
        """Send a request and wait for its answer.

        Args:
            make: gives the request for an id.
            convert: called with the answer as soon as it is received.

        Raises:
            Timeout: no answer in time.
            QuintlogError: the connection was lost and it cannot be repeated, the client is over, or from ``convert``.
        """
        number = self.number()
        call = self._calls[number] = Call(name, encode_request(make(number)), convert, is_repeatable)
        call.limit(timeout_s)
        self._write(call.frame)
        try:
            result: T = await call.future
            return result
        finally:
            call.close()
            self._calls.pop(number, None)

    def received(self, number: int, response: Response) -> None:
        """An answer; one that nobody waits for is ignored."""
        call = self._calls.get(number)
        if call is not None:
            call.answer(response)

    def lost(self, make_error: Callable[[Call], QuintlogError]) -> None:
        """The connection is gone: what cannot be repeated fails."""
        for call in list(self._calls.values()):
            if not call.is_repeatable:
                call.fail(make_error(call))

    def repeat(self) -> None:
        """A new connection: ask again."""
        for call in self._calls.values():
            if not call.future.done():
                self._write(call.frame)

    def fail(self, error: QuintlogError) -> None:
        """None of them will be answered."""
        for call in list(self._calls.values()):
            call.fail(error)

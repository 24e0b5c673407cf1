"""A small protocol for tests of the network shell: frames of u32 length and payload, whose first byte is a command.

==== =============================================================================================================
e    echo the frame
l    echo the frame later: it is outstanding until ``EchoSession.answer_later()``
h    hold the connection, answer nothing; ``release()`` lets it go on
x    raise an error that is no ProtocolError
w    answer with as many bytes as the decimal number that follows
s    store the rest of the payload in topic "echo"; the frame is echoed when it is stored
==== =============================================================================================================

Anything else, and a length above ``FRAME_BYTES``, is a ProtocolError.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from netserver.config.sections import PROTOCOL_SECTIONS
from netserver.shell.connection import Connection, ProtocolError, Services, SessionFactory
from netserver.shell.outstanding import Outstanding, Released

FRAME_BYTES = 8 << 20
ALONE = {name: {"listen": "off"} for name in PROTOCOL_SECTIONS}
"""Settings that leave this protocol alone."""


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class EchoSession:
    frame_bytes_max = FRAME_BYTES

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.later: list[bytes] = []
        self.outstanding = Outstanding(connection, self.stored, connection.services.log.slices)
        self.resumed = 0
        self.gone = 0
        self.received_calls = 0
        self.ending = False

    def received(self, data: memoryview, length: int) -> int:
        self.received_calls += 1
        position = 0
        while length - position >= 4 and not self.connection.held:
            size = int.from_bytes(data[position : position + 4], "big")
            if size > FRAME_BYTES:
                raise ProtocolError(f"frame of {size} bytes", "frame_size")
            if length - position - 4 < size:
                self.connection.expect(4 + size)
                break
            whole = bytes(data[position : position + 4 + size])
            position += 4 + size
            self.handle(whole)
        return position

    def handle(self, whole: bytes) -> None:
        match whole[4:5]:
            case b"e":
                self.connection.write(whole)
            case b"l":
                self.later.append(whole)
            case b"h":
                self.connection.hold("test")
            case b"x":
                raise RuntimeError("a defect")
            case b"w":
                self.connection.write(bytes(int(whole[5:])))
            case b"s":
                log = self.connection.services.log
                partition = log.partition(log.catalog.get_or_create(b"echo"))
                partition.append([whole[5:]], waiter=self.outstanding)
                write_batch = partition.append([whole[5:]], waiter=self.outstanding)
                self.outstanding.add(write_batch, whole, 2 * len(whole), 2)
            case command:
                raise ProtocolError(f"unknown command {command!r}", "command")

    def stored(self, released: Released) -> None:
        self.connection.write(b"".join(token for token, error in released if error is None))  # type: ignore[misc]
        self.end_when_idle()

    def answer_later(self) -> None:
        self.connection.write(b"".join(self.later))
        self.later.clear()
        self.end_when_idle()

    def end_when_idle(self) -> None:
        if self.ending and self.idle():
            self.connection.close()

    def eof(self) -> None:
        self.ending = True
        self.end_when_idle()

    def resume_output(self) -> None:
        self.resumed += 1

    def closed(self) -> None:
        self.gone += 1

    def idle(self) -> bool:
        return not self.later and not self.outstanding

    def drain(self) -> None:
        self.eof()


class Echo:
    """The protocol's ``factory(services)``; keeps the sessions it made."""

    def __init__(self) -> None:
        self.sessions: list[EchoSession] = []
        self.fail = False

    def __call__(self, services: Services) -> SessionFactory:
        def make(connection: Connection) -> EchoSession:
            if self.fail:
                raise RuntimeError("no session today")
            self.sessions.append(EchoSession(connection))
            return self.sessions[-1]

        return make


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": lambda: asyncio.SelectorEventLoop(selectors.DefaultSelector()),
}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(main, 30))


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Turn the loop until ``condition`` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, "it did not come about"
        await asyncio.sleep(0.001)

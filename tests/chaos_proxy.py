"""A TCP proxy that breaks connections at any byte, in either direction, by FIN or by reset."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable

RETRY_S = 0.02

Watch = Callable[[int, bytes], None]
"""Told what passes from the server to the client: (number of the connection, bytes)."""


class ChaosProxy:
    """Listens on a free port of 127.0.0.1 and passes on to ``target``.

    Args:
        cut_bytes: a connection is broken after about so many bytes; None: never.
        fin: break some of them by FIN in mid-line; else all by reset.
        to_server, to_client: told what arrives at the server, and what leaves it.

    Attributes:
        connections, cuts: how many there were.
    """

    def __init__(
        self,
        target: tuple[str, int],
        rng: random.Random,
        cut_bytes: int | None,
        to_server: Watch | None = None,
        to_client: Watch | None = None,
        fin: bool = True,
    ) -> None:
        self.target = target
        self.cut_bytes = cut_bytes
        self.connections = 0
        self.cuts = 0
        self.port = 0
        self._rng = rng
        self._fin = fin
        self._to_server = to_server
        self._to_client = to_client
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ChaosProxy]:
        """Accept connections until the end of the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        while True:  # a server that is down is waited for: a client that redials without pause would only spin
            try:
                far_reader, far_writer = await asyncio.open_connection(*self.target)
                break
            except OSError:
                await asyncio.sleep(RETRY_S)
        left = self._rng.randrange(1, 2 * self.cut_bytes) if self.cut_bytes is not None else 1 << 62

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, watch: Watch | None) -> bool:
            """Pass on until the source ends (True: in order) or the bytes are used up."""
            nonlocal left
            while data := await source.read(65536):
                passed = data[: max(left, 0)]
                left -= len(data)
                if watch is not None:  # what the client loses at a break did leave the server
                    watch(number, passed if sink is far_writer else data)
                sink.write(passed)
                await sink.drain()
                if left < 0:
                    return False
            sink.write_eof()
            return True

        ways = [
            asyncio.ensure_future(pump(reader, far_writer, self._to_server)),
            asyncio.ensure_future(pump(far_reader, writer, self._to_client)),
        ]
        try:
            for way in asyncio.as_completed(ways):
                with contextlib.suppress(OSError):
                    if await way:
                        continue
                break
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            if left < 0:
                self.cuts += 1
            for end in (writer, far_writer):
                if not self._fin or (left < 0 and self._rng.random() < 0.5):
                    _reset(end)
                end.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the peer sees a reset."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

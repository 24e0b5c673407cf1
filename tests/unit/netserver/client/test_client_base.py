"""What the clients have in common: addresses, back-off, one connection that is kept up, events, a clean end.

The client here speaks lines: it sends ``N\\n`` for record N, the server sends it back when it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from netserver.client.base import ClientBase, ClientEvent, LinkLike, exponential_backoff, parse_address
from netserver.client.window import Entry
from netserver.errors import Closed, ConnectionFailed, ProtocolError, Refused, Timeout, Unknown
from tests.echo import LOOPS, run, until

pytestmark = pytest.mark.whole

BOTH_LOOPS = pytest.mark.parametrize("loop", LOOPS)
FRAME_BYTES = 1 << 20


class Lines(ClientBase):
    """See the module."""

    def __init__(self, port: int, **options: object) -> None:
        settings: dict[str, object] = {"window": 64, "window_bytes": 1 << 20, "frame_bytes_max": FRAME_BYTES}
        settings["backoff"] = lambda failures: 0.001
        super().__init__("127.0.0.1", port, **{**settings, **options})  # type: ignore[arg-type]
        self.number = 0
        self.told: list[str] = []
        self.greeting: Callable[[], Awaitable[None]] | None = None

    def _received(self, data: memoryview, length: int) -> int:
        raw = bytes(data[:length])
        end = raw.rfind(b"\n") + 1
        for line in raw[:end].split():
            if line == b"bad":
                raise ProtocolError("not a number")
            self.window.ack_through(int(line))
        return end

    async def _handshake(self, link: LinkLike) -> None:
        if self.greeting is not None:
            await self.greeting()

    def _restore(self, link: LinkLike) -> None:
        self.told.append("restore")
        link.write(b"hello\n")

    def _lost(self, reason: Exception) -> None:
        self.told.append("lost")

    def _ended(self, error: Exception) -> None:
        self.told.append("ended")

    async def _farewell(self, link: LinkLike) -> None:
        link.write(b"bye\n")

    async def send(self, size_bytes: int = 0) -> asyncio.Future[None]:
        self._check_open()
        await self.window.room(1, size_bytes + 10)
        self.number += 1
        frames = b"%010d\n" % self.number + b"." * size_bytes
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(Entry(self.number, self.number, frames, future, [self.number]))
        return future


class Server:
    """Reads lines; what it does with one is ``handle(line, writer)``; by default it sends numbers back."""

    def __init__(self) -> None:
        self.lines: list[list[bytes]] = []
        self.silent = False
        self.handle: Callable[[bytes, asyncio.StreamWriter], None] = lambda line, writer: None
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Server:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.port: int = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()
        await asyncio.sleep(0)

    def stop(self) -> None:
        self.server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    @property
    def received(self) -> list[bytes]:
        """Of all connections."""
        return [line for lines in self.lines for line in lines]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines: list[bytes] = []
        self.lines.append(lines)
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                lines.append(line.strip(b".\n"))
                self.handle(lines[-1], writer)
                if lines[-1].isdigit() and not self.silent and not writer.is_closing():
                    writer.write(lines[-1] + b"\n")
        writer.transport.abort()


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line) for line in lines if line.isdigit()]


def names(events: list[ClientEvent]) -> list[str]:
    return [event.name for event in events]


async def listen(client: ClientBase, events: list[ClientEvent]) -> None:
    async for event in client.events():
        events.append(event)


# --- parts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("host", ("host", 8119)),
        ("host:1", ("host", 1)),
        ("[::1]", ("::1", 8119)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1", ("::1", 8119)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text, 8119) == found


@pytest.mark.parametrize(
    "text", ["", ":1", "host:0", "host:65536", "host:x", "host: 1", "host:1_0", "host:+1", "[::1", "[::1]x", "[]:1"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        parse_address(text, 8119)


def test_backoff_doubles_up_to_its_bound_for_ever() -> None:
    wait_s = exponential_backoff()
    assert wait_s(0) == 0
    for failures, middle in ((1, 1.0), (2, 2.0), (3, 4.0), (5, 16.0), (6, 30.0), (64, 30.0), (10**9, 30.0)):
        waits = [wait_s(failures) for _ in range(200)]
        assert middle * 0.8 <= min(waits) < middle < max(waits) <= middle * 1.2
    assert exponential_backoff(0.5, 8, 0, immediate=False)(0) == 0.5


# --- the connection


@BOTH_LOOPS
def test_await_and_async_with_are_the_same(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            client = Lines(server.port)
            with pytest.raises(Closed):
                await client.send()
            assert await client is client
            assert await client is client
            assert client.connected
            await (await client.send())
            await client.close()
            await client.close()
            assert not client.connected
            for call in (client.send(), client._opened()):
                with pytest.raises(Closed):
                    await call
            async with Lines(server.port) as other:
                acks = [await other.send() for _ in range(1000)]
            assert all(ack.done() for ack in acks)
            assert server.received.count(b"bye") == 2
            assert client.told == ["restore", "ended"]

    run(loop, main())


@BOTH_LOOPS
def test_the_first_dial_fails_at_once(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            port = server.port
        client = Lines(port)
        with pytest.raises(ConnectionFailed) as caught:
            await client
        assert caught.value.retryable
        async with Server() as server:
            client.port = server.port
            await client
            await client.close()

    run(loop, main())


@BOTH_LOOPS
def test_a_lost_connection_is_made_again_and_the_window_resent_in_order(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            events: list[ClientEvent] = []
            async with Lines(server.port) as client:
                listener = asyncio.create_task(listen(client, events))
                server.silent = True
                acks = [await client.send() for _ in range(50)]
                await until(lambda: len(numbers(server.received)) == 50)
                server.cut()
                server.silent = False
                acks += [await client.send() for _ in range(100)]
                await client.flush()
            await listener
            assert all(ack.done() for ack in acks)
            assert numbers(server.lines[0]) == list(range(1, 51))
            assert server.lines[1][0] == b"hello", "what must be told first"
            assert numbers(server.lines[1]) == list(range(1, 151))
            assert names(events) == ["connected", "disconnected", "connected", "closed"]
            assert client.told == ["restore", "lost", "restore", "ended"]

    run(loop, main())


def test_a_server_that_accepts_and_closes_is_not_dialled_in_a_circle() -> None:
    async def main() -> None:
        waits: list[int] = []

        def backoff(failures: int) -> float:
            waits.append(failures)
            return 0.001

        async with Server() as server:
            server.handle = lambda line, writer: writer.transport.abort()
            client = await Lines(server.port, backoff=backoff)
            await until(lambda: len(waits) >= 10)
            assert waits == list(range(1, len(waits) + 1))
            await client.close()

    run("asyncio", main())


@BOTH_LOOPS
def test_giving_up_tells_what_is_unknown(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            events: list[ClientEvent] = []
            client = await Lines(server.port, give_up_after_s=0.05)
            listener = asyncio.create_task(listen(client, events))
            await asyncio.sleep(0)
            server.silent = True
            ack = await client.send()
            server.stop()
            with pytest.raises(Unknown) as caught:
                await ack
            assert list(caught.value.records) == [1]
            for call in (client.send(), client.flush()):
                with pytest.raises(ConnectionFailed):
                    await call
            await client.close()
            await listener
            assert names(events)[:2] == ["connected", "disconnected"]
            assert names(events)[-2:] == ["failed", "gave_up"]
            assert client.told == ["restore", "lost", "ended"]

    run(loop, main())


def test_a_refusal_in_the_handshake_ends_the_client() -> None:
    async def main() -> None:
        async def refuse() -> None:
            raise Refused(401, "who are you?")

        async with Server() as server:
            client = Lines(server.port)
            client.greeting = refuse
            with pytest.raises(Refused):
                await client
            client.greeting = None
            await client
            client.greeting = refuse
            server.silent = True
            ack = await client.send()
            server.cut()
            with pytest.raises(Unknown):
                await ack
            with pytest.raises(Refused):
                await client.send()

    run("asyncio", main())


def test_a_handshake_ends_with_its_connection_or_its_time() -> None:
    async def main() -> None:
        async with Server() as server:
            client = Lines(server.port, dial_timeout_s=0.05)

            async def hang() -> None:
                await asyncio.sleep(100)

            client.greeting = hang
            with pytest.raises(ConnectionFailed, match=r"not as its protocol.*nothing came for 0\.05 s"):
                await client
            client.dial_timeout_s = 10.0
            asked = len(server.writers)  # it was looked what that server is
            opening = asyncio.create_task(client._opened())
            await until(lambda: len(server.writers) > asked)
            server.cut()
            with pytest.raises(ConnectionFailed):
                await opening

    run("asyncio", main())


def test_a_server_that_breaks_the_protocol_is_left() -> None:
    async def main() -> None:
        async with Server() as server:
            events: list[ClientEvent] = []
            async with Lines(server.port) as client:
                listener = asyncio.create_task(listen(client, events))
                await asyncio.sleep(0)
                server.writers[0].write(b"bad\n")
                await until(lambda: len(events) == 3)
                await (await client.send())
                server.writers[-1].write(b"x" * (FRAME_BYTES + 1))
                await until(lambda: len(events) == 5)
            await listener
            assert [type(event.reason) for event in events if event.name == "disconnected"] == [ProtocolError] * 2

    run("asyncio", main())


def test_a_frame_larger_than_the_buffer_arrives_whole() -> None:
    async def main() -> None:
        async with Server() as server, Lines(server.port) as client:
            server.silent = True
            ack = await client.send()
            server.writers[0].write(b"1\n".rjust(FRAME_BYTES - 1))
            await ack

    run("asyncio", main())


@BOTH_LOOPS
def test_a_server_that_does_not_read_stops_the_writing_only(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            async with Lines(server.port, window=1000, window_bytes=1 << 26) as client:
                await until(lambda: server.writers)
                transport = server.writers[0].transport
                transport.pause_reading()  # type: ignore[attr-defined]
                acks = [await client.send(100_000) for _ in range(300)]
                await until(lambda: client._link is not None and not client._link.writable)
                assert client.window.unsent
                transport.resume_reading()  # type: ignore[attr-defined]
                await client.flush()
                assert all(ack.done() for ack in acks)
            assert numbers(server.received) == list(range(1, 301))

    run(loop, main())


# --- the end


@BOTH_LOOPS
def test_leaving_waits_for_acknowledgements_but_not_for_ever(loop: str) -> None:
    async def main() -> None:
        async with Server() as server:
            server.silent = True
            with pytest.raises(Unknown) as caught:
                async with Lines(server.port, flush_timeout_s=0.05) as client:
                    ack = await client.send()
            assert list(caught.value.records) == [1]
            assert isinstance(ack.exception(), Unknown)

            async def fail() -> None:
                async with Lines(server.port, flush_timeout_s=0.05) as client:
                    await client.send()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as other:
                await fail()
            assert "not acknowledged" in other.value.__notes__[0]

    run(loop, main())


def test_flush_with_a_time_limit_may_be_called_again() -> None:
    async def main() -> None:
        async with Server() as server, Lines(server.port) as client:
            server.silent = True
            await client.send()
            with pytest.raises(Timeout):
                await client.flush(0.01)
            server.writers[0].write(b"1\n")
            await client.flush()

    run("asyncio", main())


def test_a_cancelled_application_is_not_held_up() -> None:
    async def main() -> None:
        async with Server() as server:
            server.silent = True

            async def application() -> None:
                async with Lines(server.port, flush_timeout_s=60.0) as client:
                    await client.send()
                    await asyncio.sleep(60)

            task = asyncio.create_task(application())
            await until(lambda: server.received)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run("asyncio", main())


def test_events_of_a_closed_client_end() -> None:
    async def main() -> None:
        async with Server() as server:
            client = await Lines(server.port)
            await client.close()
            assert [event async for event in client.events()] == []

    run("asyncio", main())

"""The JSON streaming client: against our server, and against a scripted one that behaves as it should not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from netserver import reliably
from netserver.errors import Closed, ConnectionFailed, ProtocolError, Refused, Timeout, WrongServer
from netserver.reliably.client import patient_backoff
from netserver.reliably.values import NumbersState, next_numbers
from tests.reliably_peer import place, run

pytestmark = pytest.mark.whole

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def quick(failures: int) -> float:
    return 0.01 if failures else 0.0


def numbers(count: int, seed: int = 1) -> list[bytes]:
    """The lines of a stream."""
    messages, _ = next_numbers(NumbersState(count, seed, 0), count)
    return [line + b"\n" for line in bytes(messages.lines(1)).splitlines()]


class Scripted:
    """A server that plays one handler after the other, one for each connection; ``requests`` are their first lines."""

    def __init__(self, *handlers: Handler) -> None:
        self.handlers = list(handlers)
        self.requests: list[Any] = []
        self.address = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Scripted]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            self.requests.append(json.loads(await reader.readline()))
            await self.handlers.pop(0)(reader, writer)
        writer.close()


def say(*data: bytes, then: str = "close") -> Handler:
    """Write, then close, reset, or wait for the client to close."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(data))
        await writer.drain()
        if then == "reset":
            writer.transport.abort()
        elif then == "wait":
            await reader.read()

    return handler


# --- against our server


def test_numbers_with_checksum() -> None:
    async def test() -> None:
        async with (
            place() as here,
            reliably.connect(here.address, params={"count": 1000}, ack_every=100) as session,
        ):
            messages = [message async for message in session]
            assert [message.id for message in messages] == list(range(1, 1001))
            values = b"".join(message.data["value"].to_bytes(4, "big") for message in messages)
            assert messages[-1].data["crc"] == zlib.crc32(values) == session.position.crc
            name = session.position.session
            await here.until(lambda: here.sessions.info(name).expires_in_s is not None)
            assert here.sessions.position(name)[0] % 100 == 0
            assert [message async for message in session] == []
            with pytest.raises(Closed):
                await session.next()

    run(test())


def test_stateless_and_on_from_there() -> None:
    async def test() -> None:
        async with place(random_start=lambda: 3) as here:
            async with reliably.connect(here.address) as stream:
                assert stream.state is None
                assert [(await stream.next(5)).data for _ in range(4)] == ["3", "6", "12", "24"]
                assert stream.state == "24"
            async with reliably.connect(here.address, state="24") as stream:
                assert stream.state == "24"
                message = await stream.next(5)
                assert (message.id, message.data) == (None, "48")
                with pytest.raises(ValueError, match="state"):
                    _ = stream.position

    run(test())


def test_a_stateless_stream_goes_on_after_a_break() -> None:
    async def test() -> None:
        async with (
            place({"interval_ms": 2}, random_start=lambda: 1) as here,
            reliably.connect(here.address, backoff=quick) as stream,
        ):
            for n in range(60):
                assert (await stream.next(5)).data == str(2**n)
                if n % 20 == 10:
                    for connection in list(here.server.shell.connections):
                        connection.abort()

    run(test())


def test_a_topic_is_followed_and_acknowledged_by_hand() -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", b"a", b"b", b"c")
            name = uuid.uuid4()
            async with reliably.connect(
                here.address, session=name, params={"topic": "t", "offset": 1}, ack_every=0
            ) as session:
                assert (await session.next(5)).data["value"] == "b"
                assert (await session.next(5)).data["value"] == "c"
                with pytest.raises(Timeout):
                    await session.next(0.05)
                assert session.position == (str(name), 2, None)
                assert here.sessions.position(str(name))[0] == 0
                here.publish("t", b"d")
                assert (await session.next(5)).id == 3
                await session.ack()
                await here.until(lambda: here.sessions.position(str(name))[0] == 3)
                await session.ack()
            with pytest.raises(Closed):
                await session.next()

    run(test())


def test_count_ends_a_topic_stream() -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", *(b"%d" % n for n in range(10)))
            async with reliably.connect(here.address, params={"topic": "t", "offset": 0, "count": 4}) as session:
                assert [message.data["offset"] async for message in session] == [1, 2, 3, 4]

    run(test())


def test_a_session_file_over_restarts_of_the_program(tmp_path: Path) -> None:
    file = tmp_path / "numbers.session"

    async def test() -> None:
        async with place() as here:
            values: list[int] = []
            while True:
                params = {"count": 50} if not values else None
                async with reliably.connect(here.address, session=file, params=params, ack_every=5) as session:
                    assert session.position.id == len(values)
                    got = 0
                    async for message in session:
                        values.append(message.data["value"])
                        assert message.id == len(values)
                        got += 1
                        if got == 13:
                            break
                    if got == 13:
                        values.pop()  # the last one was handed out and not done: it comes again
                    else:
                        break
            assert len(values) == 50
            stored = json.loads(file.read_text())
            assert stored["done"] is True
            assert stored["crc"] == zlib.crc32(b"".join(value.to_bytes(4, "big") for value in values))
            async with reliably.connect(here.address, session=file) as session:  # no connection any more
                assert [message async for message in session] == []
            assert not file.with_name(file.name + ".new").exists()

    run(test())


def test_what_is_done_is_written_before_it_is_acknowledged(tmp_path: Path) -> None:
    """Else a crash between the two leaves a file whose position the server no longer has."""
    file = tmp_path / "s"

    async def test() -> None:
        async with place() as here:
            async with reliably.connect(here.address, session=file, params={"count": 60000}, ack_every=10) as session:
                name = session.position.session
                async for message in session:
                    base = here.sessions.position(name)[0]
                    assert not base or json.loads(file.read_text())["id"] >= base
                    if message.id == 200:
                        break
                await here.until(lambda: here.sessions.position(name)[0] == 190)
            async with reliably.connect(here.address, session=file) as session:
                assert (await session.next(5)).id == 200

    run(test())


def test_a_position_kept_by_the_caller() -> None:
    async def test() -> None:
        async with place() as here:
            async with reliably.connect(here.address, params={"count": 30}, ack_every=0) as session:
                for _ in range(20):
                    await session.next(5)
                position = session.position
                assert position.id == 19
            async with reliably.connect(
                here.address, session=position.session, after=position.id, crc=position.crc
            ) as session:
                assert [message.id async for message in session] == list(range(20, 31))
            async with reliably.connect(here.address, session=position.session, after=25) as session:
                assert (await session.next(5)).id == 26

    run(test())


def test_leaving_in_mid_stream_and_refusals() -> None:
    async def test() -> None:
        async with place() as here:
            async with reliably.connect(here.address, params={"count": 60000}) as session:
                await session.next(5)
            with pytest.raises(Refused, match="Unknown client 'nobody'"):
                async with reliably.connect(here.address, session="nobody", after=5) as session:
                    await session.next(5)
            async with reliably.connect(here.address, params={"topic": "no", "offset": 0}) as session:
                with pytest.raises(Refused, match="Unknown topic 'no'") as refusal:
                    async for _ in session:
                        pass
                assert not refusal.value.retryable
                with pytest.raises(Refused):
                    await session.next()
            await here.until(lambda: not here.server.shell.connections)

    run(test())


def test_prefetch_is_bounded() -> None:
    async def test() -> None:
        async with (
            place() as here,
            reliably.connect(here.address, params={"count": 65535}, prefetch_messages=100) as session,
        ):
            first = await session.next(5)
            await asyncio.sleep(0.2)
            assert len(session._queue) < 30_000  # what one read had brought, not the whole stream
            rest = [message async for message in session]
            assert [first.id, rest[-1].id] == [1, 65535]

    run(test())


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_text('{"uuid": "u", "params": {"count": 5}, "id": 3, "crc": 1, "done": false}')
    junk = tmp_path / "junk"
    for make in (
        lambda: reliably.connect("x:1", session="u"),
        lambda: reliably.connect("x:1", after=5),
        lambda: reliably.connect("x:1", params={"count": 1}, state="5"),
        lambda: reliably.connect("x:1", session=tmp_path / "not there"),
        lambda: reliably.connect("x:1", session=file, after=5),
        lambda: reliably.connect("x:1", session=file, params={"count": 6}),
        lambda: reliably.connect("x:0"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            make()
    assert reliably.connect("x:1", session=file).position == ("u", 3, 1)
    for text in ("", "[]", "{}", '{"uuid": 5}', '{"uuid": "u", "params": null, "id": -1}', "x" * 100_000):
        junk.write_text(text)
        with pytest.raises(ValueError, match="is not a session file"):
            reliably.connect("x:1", session=junk)


def test_nobody_there() -> None:
    async def test() -> None:
        async with Scripted().running() as server:
            address = server.address
        with pytest.raises(ConnectionFailed):
            await reliably.connect(address, params={"count": 1})

    run(test())


# --- against others


def test_the_original_is_understood() -> None:
    """Its way: spaces nowhere, a bare close after the end, acknowledgements read."""

    async def test() -> None:
        lines = numbers(40)
        acks: list[Any] = []
        read = asyncio.Event()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for line in lines:
                writer.write(line)
            while line := await reader.readline():
                acks.append(json.loads(line))
            read.set()

        async with Scripted(handler).running() as server:
            async with reliably.connect(server.address, session="u", params={"count": 40}) as session:
                assert len([message async for message in session]) == 40
            assert server.requests == [{"uuid": "u", "params": {"count": 40}}]
            await read.wait()
            assert acks == [{"uuid": "u", "ack": 16}, {"uuid": "u", "ack": 32}]

    run(test())


def test_breaks_cut_lines_and_doubled_messages() -> None:
    async def test() -> None:
        lines = numbers(30)
        script = Scripted(
            say(then="close"),  # nothing came: params again
            say(lines[0], lines[1], lines[2][:20]),  # cut in mid-line
            say(*lines[2:9], then="reset"),
            say(then="reset"),
            say(*lines[5:20]),  # some of them again, as after a state below what had come
            say(*lines[20:], then="wait"),
        )
        async with (
            script.running() as server,
            reliably.connect(server.address, session="u", params={"count": 30}, backoff=quick) as session,
        ):
            assert [message.id async for message in session] == list(range(1, 31))
            states = [request.get("state") for request in server.requests]
            assert server.requests[:2] == [{"uuid": "u", "params": {"count": 30}}] * 2
            assert all(isinstance(state, int) and state > 0 for state in states[2:])
            assert states[2:] == sorted(states[2:])

    run(test())


def test_nothing_used_of_what_came_begins_anew() -> None:
    """Never a state of 0, which makes the original skip messages."""

    async def test() -> None:
        script = Scripted(say(*numbers(5, seed=1)[:2]), say(*numbers(5, seed=2), then="wait"))
        async with script.running() as server:
            session = await reliably.connect(server.address, session="u", params={"count": 5}, backoff=quick)
            async with asyncio.timeout(5):
                while len(server.requests) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            values = [message.data["value"] async for message in session]
            assert values == [json.loads(line)["data"]["value"] for line in numbers(5, seed=2)]
            assert server.requests == [{"uuid": "u", "params": {"count": 5}}] * 2
            await session.close()

    run(test())


@pytest.mark.parametrize(
    ("lines", "error", "text"),
    [
        ([b'{"error":"no"}\n'], Refused, "no"),
        ([numbers(3)[0], numbers(3)[2]], ProtocolError, "message 3 after 1"),
        ([b"hello\n"], WrongServer, "not as a JSON stream .* begins with {"),
        ([b'{"hello":1}\n'], WrongServer, "not a message"),
        ([numbers(3)[0], b"hello\n"], ProtocolError, "not JSON"),
        ([b'{"data":"5"}\n'], ProtocolError, "message None after 0"),
        ([b'{"id":1,"data":{"value":-1}}\n'], ProtocolError, "not a number of the stream"),
        ([b'{"id":1,"data":{"value":4294967296}}\n'], ProtocolError, "not a number of the stream"),
        ([b'{"id":1,"data":[]}\n'], ProtocolError, "not a number of the stream"),
        ([b'{"id":1,"data":{"value":5,"crc":5}}\n'], reliably.ChecksumMismatch, "checksum 5 of the server"),
    ],
)
def test_streams_that_cannot_go_on(lines: list[bytes], error: type[Exception], text: str) -> None:
    async def test() -> None:
        async with (
            Scripted(say(*lines, then="wait")).running() as server,
            reliably.connect(server.address, params={"count": 3}, backoff=quick) as session,
        ):
            with pytest.raises(error, match=text):
                async for _ in session:
                    pass
            await asyncio.sleep(0.05)
            assert len(list(filter(None, server.requests))) == 1, "it must not dial again"

    run(test())


def test_a_checksum_of_0_is_an_end() -> None:
    value = 0x9D0AD96D
    assert zlib.crc32(value.to_bytes(4, "big")) == 0

    async def test() -> None:
        line = b'{"id":1,"data":{"value":%d,"crc":0}}\n' % value
        async with (
            Scripted(say(line, then="wait")).running() as server,
            reliably.connect(server.address, params={"count": 1}) as session,
        ):
            assert [message.id async for message in session] == [1]

    run(test())


def test_a_server_that_never_says_a_word_is_another_one() -> None:
    async def test() -> None:
        async with (
            Scripted(*(say() for _ in range(20))).running() as server,
            reliably.connect(server.address, params={"count": 3}, backoff=quick) as session,
        ):
            with pytest.raises(WrongServer, match="without an answer"):
                await session.next(10)
            assert len(list(filter(None, server.requests))) == 2, "beside the questions what it is"

    run(test())


def test_a_server_that_says_no_more_words_is_a_refusal() -> None:
    async def test() -> None:
        script = Scripted(say(numbers(3)[0]), *(say() for _ in range(20)))
        async with (
            script.running() as server,
            reliably.connect(server.address, params={"count": 3}, backoff=quick) as session,
        ):
            assert (await session.next(10)).id == 1
            with pytest.raises(Refused, match="without an answer"):
                await session.next(10)
            assert len(server.requests) == 6

    run(test())


def test_giving_up() -> None:
    async def test() -> None:
        async with Scripted(say(numbers(3)[0])).running() as server:
            session = await reliably.connect(server.address, params={"count": 3}, backoff=quick, give_up_after_s=0.2)
            assert (await session.next(5)).id == 1
        with pytest.raises(ConnectionFailed):
            await session.next(5)
        events = [event.name async for event in session.events()]
        assert events == []
        await session.close()

    run(test())


def test_pauses_between_dials() -> None:
    wait_s = patient_backoff()
    assert wait_s(0) == 0
    for failures, least in ((1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (9, 60), (10_000, 60)):
        assert all(least <= wait_s(failures) <= 1.2 * least for _ in range(50))


def test_a_line_that_is_too_long() -> None:
    async def test() -> None:
        script = Scripted(*(say(b"{" * 300_000, then="wait") for _ in range(5)))
        async with (
            script.running() as server,
            reliably.connect(server.address, params={"count": 3}, message_bytes_max=100_000, backoff=quick) as session,
        ):
            with pytest.raises(WrongServer, match="larger than 100000 bytes"):
                await session.next(10)

    run(test())

"""The BlipMQ client against scripted servers: overloaded, broken, or as forgetful as the original."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from netserver import blipmq
from netserver.blipmq import codec
from netserver.blipmq.codec import Decoder, Frame, FrameType, FramingError
from netserver.errors import ConnectionFailed, NotStored, ProtocolError, Refused, Unknown, WrongServer
from tests.blipmq_place import FAST, take
from tests.echo import until

pytestmark = pytest.mark.whole


class Script:
    """A server that answers as the test says; it logs in by itself."""

    def __init__(self) -> None:
        self.connections = 0
        self.open = 0
        self.frames: list[Frame] = []
        self.on_frame: Callable[[Frame, asyncio.StreamWriter], None] = lambda _frame, _writer: None
        self.greeting: Callable[[Frame], bytes] = lambda frame: codec.ack(frame.cid)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        decoder = Decoder()
        with contextlib.suppress(ConnectionError, FramingError):  # a client that wonders what this is asks other things
            while data := await reader.read(1 << 16):
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    if frame.type in (FrameType.HELLO, FrameType.AUTH):
                        writer.write(self.greeting(frame))
                        continue
                    self.frames.append(frame)
                    self.on_frame(frame, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    listener = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        listener.close()
        await until(lambda: not script.open)


def pongs(frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame.type == FrameType.PING:
        writer.write(codec.pong(frame.cid))


def test_an_overloaded_server_gets_the_message_again() -> None:
    """The original refuses with 500 when its log is behind."""
    script = Script()
    refusals = {b"b": 3, b"d": 1}

    def answer(frame: Frame, writer: asyncio.StreamWriter) -> None:
        pongs(frame, writer)
        if frame.type == FrameType.PUBLISH:
            body = codec.parse_publish(frame.payload).body
            if refusals.get(body, 0):
                refusals[body] -= 1
                writer.write(codec.nack(frame.cid, 500, "durable publish failed: wal overload: wal channel full"))

    async def main() -> None:
        async with scripted(script) as address, blipmq.connect(address) as client:
            script.on_frame = answer
            await client.publish_many("t", [b"a", b"b", b"c", b"d", b"e"])
            future = await client.send("t", b"f")
            refusals[b"g"] = 1
            late = await client.send("t", b"g")
            await client.flush()
            assert future.done()
            assert late.done()
        bodies = [codec.parse_publish(frame.payload).body for frame in script.frames if frame.type == FrameType.PUBLISH]
        assert sorted(bodies) == [b"a", b"b", b"b", b"b", b"b", b"c", b"d", b"d", b"e", b"f", b"g", b"g"]

    asyncio.run(main())


def test_a_server_that_never_stores() -> None:
    script = Script()

    def answer(frame: Frame, writer: asyncio.StreamWriter) -> None:
        pongs(frame, writer)
        if frame.type == FrameType.PUBLISH:
            writer.write(codec.nack(frame.cid, 500, "durable publish failed: wal writer stopped"))

    async def main() -> None:
        script.on_frame = answer
        async with scripted(script) as address, blipmq.connect(address, store_timeout_s=0.3) as client:
            with pytest.raises(NotStored, match="wal writer stopped"):
                await client.publish("t", b"x")
            await client.publish("t", b"y", qos=0)
            await client.flush()
        async with scripted(script) as address:
            client = await blipmq.connect(address)
            future = await client.send("t", b"x")
            await asyncio.sleep(0.02)
            await client.close(0)
            with pytest.raises((NotStored, Unknown)):
                await future

    asyncio.run(main())


def test_what_was_not_confirmed_is_sent_again_on_a_new_connection() -> None:
    script = Script()
    script_connection: list[int] = []

    def answer(frame: Frame, writer: asyncio.StreamWriter) -> None:
        if frame.type == FrameType.PUBLISH:
            script_connection.append(script.connections)
        if frame.type == FrameType.PING:
            if script.connections == 1:
                writer.transport.abort()
            else:
                writer.write(codec.pong(frame.cid))

    async def main() -> None:
        script.on_frame = answer
        async with scripted(script) as address, blipmq.connect(address, **FAST) as client:
            lost = await client.send("t", b"zero", qos=0)
            await client.publish("t", b"x")
            assert lost.done()
        assert [codec.parse_publish(frame.payload)[::2] for frame in script.frames if frame.type == FrameType.PUBLISH][
            -1
        ] == (1, b"x")
        assert script_connection.count(2) == 1, "QoS 0 is not sent again"

    asyncio.run(main())


def test_many_of_which_one_cannot_be_sent_are_refused_before() -> None:
    async def main() -> None:
        script = Script()
        async with scripted(script) as address, blipmq.connect(address, window=4) as client:
            with pytest.raises(TypeError):
                await client.publish_many("t", [b"a", b"b", "text"])  # type: ignore[list-item]
            assert client.window.records == 0
        assert all(frame.type != FrameType.PUBLISH for frame in script.frames)

    asyncio.run(main())


def test_a_call_that_ends_amid_its_messages_tells_which_are_unknown() -> None:
    async def main() -> None:
        script = Script()
        async with scripted(script) as address:
            client = await blipmq.connect(address, window=4, give_up_after_s=0.05)
            sending = asyncio.ensure_future(client.publish_many("t", [b"%d" % n for n in range(9)]))
            await until(lambda: sum(frame.type == FrameType.PUBLISH for frame in script.frames) == 4)
            with pytest.raises(Unknown):
                await client.close(0.05)
            with pytest.raises(Unknown) as unknown:
                await sending
            assert unknown.value.records == [b"%d" % n for n in range(4)]

    asyncio.run(main())


def test_what_is_left_at_the_end_is_unknown() -> None:
    async def main() -> None:
        async with scripted(Script()) as address:
            client = await blipmq.connect(address)
            future = await client.send("t", b"x")
            with pytest.raises(Unknown) as unknown:
                await client.close(0.05)
            assert unknown.value.records == [b"x"]
            with pytest.raises(Unknown):
                await future

    asyncio.run(main())


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        (lambda frame: codec.nack(frame.cid, 426, "unsupported protocol version"), Refused),
        (lambda frame: codec.pong(frame.cid), WrongServer),
        (lambda frame: b"\0\0\0\0" + codec.pong(frame.cid), WrongServer),
        (lambda frame: codec.frame(FrameType.NACK, frame.cid, b"\0"), WrongServer),
        (lambda frame: b"", ConnectionFailed),
    ],
)
def test_servers_that_do_not_let_us_in(greeting: Callable[[Frame], bytes], error: type[Exception]) -> None:
    async def main() -> None:
        script = Script()
        script.greeting = greeting
        async with scripted(script) as address:
            with pytest.raises(error):
                await blipmq.connect(address, dial_timeout_s=0.3)
        with pytest.raises(ConnectionFailed):
            await blipmq.connect(address)

    asyncio.run(main())


@pytest.mark.parametrize("answer", [codec.ack(5, 1), codec.pong(7), codec.publish(1, 1, b"t", b"x"), b"\0\0\0\1x"])
def test_answers_to_nothing(answer: bytes) -> None:
    async def main() -> None:
        script = Script()
        script.on_frame = lambda _frame, writer: writer.write(answer)
        async with scripted(script) as address:
            client = await blipmq.connect(address, **FAST)
            await client.send("t", b"x")
            async for event in client.events():
                if event.name == "disconnected":
                    assert isinstance(event.reason, ProtocolError)
                    break
            with pytest.raises(Unknown):
                await client.close(0)

    asyncio.run(main())


class Original(Script):
    """As much of the original as subscriptions need: it forgets all of them when ``restart`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.on_frame = self.answer
        self.queues: dict[int, list[bytes]] = {}
        self.writers: set[asyncio.StreamWriter] = set()
        self.acked: list[int] = []

    def restart(self) -> None:
        self.queues.clear()
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    def answer(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        pongs(frame, writer)
        if frame.type == FrameType.SUBSCRIBE:
            number = len(self.queues) + 2
            self.queues[number] = []
            writer.write(codec.ack(frame.cid, number))
        elif frame.type == FrameType.POLL:
            queue = self.queues.get(codec.parse_subscription_id(frame.payload, "POLL"))
            if queue:
                writer.write(codec.publish(1, 1, b"t", queue.pop(0)))
        elif frame.type == FrameType.ACK and frame.cid:
            self.acked.append(frame.cid)
        elif frame.type == FrameType.ACK:  # tag 0: the same text whether there is the subscription or not
            writer.write(codec.nack(0, 404, "unknown subscription or delivery tag"))


def test_a_server_that_forgets_its_subscriptions() -> None:
    async def main() -> None:
        original = Original()
        async with scripted(original) as address, blipmq.connect(address, **FAST) as client:
            subscription = await client.subscribe("t", forgotten_on_restart=True)
            assert subscription.id == 2
            original.queues[2].append(b"a")
            assert await take(subscription, 1) == [b"a"]
            for writer in tuple(original.writers):
                writer.transport.abort()  # only the connection broke
            await until(lambda: 3 in original.queues)
            original.queues[2].append(b"b")
            assert await take(subscription, 1) == [b"b"]
            assert subscription.id == 2
            original.restart()
            await until(lambda: 2 in original.queues)
            original.queues[2].append(b"c")
            assert await take(subscription, 1) == [b"c"]
            assert subscription.id == 2

    asyncio.run(main())


def test_a_server_that_cannot_tell_whether_there_is_a_subscription_counts_as_one_that_has_it() -> None:
    async def main() -> None:
        original = Original()
        original.queues[7] = [b"a"]
        async with scripted(original) as address, blipmq.connect(address, **FAST) as client:
            assert await take(await client.subscribe("t", resume=7), 1) == [b"a"]

    asyncio.run(main())


def test_acknowledgements_that_were_not_confirmed_are_sent_again() -> None:
    async def main() -> None:
        original = Original()
        async with scripted(original) as address, blipmq.connect(address, **FAST) as client:
            subscription = await client.subscribe("t")
            original.queues[2].append(b"a")
            message = await subscription.next(5)
            answer = original.answer

            def lose(frame: Frame, writer: asyncio.StreamWriter) -> None:
                if frame.type == FrameType.ACK and frame.cid:
                    original.on_frame = answer
                    writer.transport.abort()

            original.on_frame = lose
            await message.ack()
            await until(lambda: original.acked)
            assert original.acked == [1]
            await subscription.flush()

    asyncio.run(main())


@pytest.mark.parametrize(("code", "text"), [(400, "subscription_id must be non-zero"), (401, "unauthenticated")])
def test_a_refused_poll_ends_the_subscription(code: int, text: str) -> None:
    async def main() -> None:
        script = Original()
        script.on_frame = lambda frame, writer: (
            writer.write(codec.nack(frame.cid, code, text))
            if frame.type == FrameType.POLL
            else script.answer(frame, writer)
        )
        async with scripted(script) as address, blipmq.connect(address, **FAST) as client:
            subscription = await client.subscribe("t", resume=5)
            with pytest.raises(Refused, match=text):
                await subscription.next(5)
            before = script.connections
            await asyncio.sleep(0.05)
            assert script.connections == before, "it is not dialled again"

    asyncio.run(main())

"""The BlipMQ client: with the server, and with a scripted one that does what the original does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from netserver import blipmq
from netserver.app import Server
from netserver.auth import add_key
from netserver.blipmq import codec
from netserver.blipmq.codec import Decoder, Frame, FrameType
from netserver.errors import Closed, ConnectionFailed, NotStored, ProtocolError, Refused, TooLarge, Unknown
from netserver.testing import running, server
from tests.echo import ALONE, LOOPS, run, until

FAST = {"backoff": lambda _failures: 0.01}


def with_client(
    test: Callable[[blipmq.Client, Server], Awaitable[None]], loop: str = "asyncio", **sections: dict[str, Any]
) -> None:
    """Run ``test`` with a server in the same event loop and a client of it."""
    # a busy machine must not make messages come twice where a test does not want it
    own = {"listen": "127.0.0.1:0", "retry_backoff_ms": "20s", **sections.get("blipmq", {})}
    settings = {**ALONE, **sections, "blipmq": own}

    async def main() -> None:
        async with (
            running(settings=settings) as quintlog,
            blipmq.connect(str(quintlog.addresses["blipmq"]), **FAST) as client,
        ):
            await test(client, quintlog)

    run(loop, main())


async def take(subscription: blipmq.Subscription, count: int, *, ack: bool = True) -> list[bytes]:
    """The next messages' values."""
    found = []
    for _ in range(count):
        message = await subscription.next(10)
        found.append(message.value)
        if ack:
            await message.ack()
    return found


# --- publishing


@pytest.mark.parametrize("loop", LOOPS)
def test_published_messages_arrive_in_order(loop: str) -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        assert subscription.id > 0
        await client.publish("t", b"one")
        await client.publish(b"t", b"two", qos=0)
        futures = [await client.send("t", b"%d" % n) for n in range(500)]
        await client.publish_many("t", [b"m%d" % n for n in range(5000)])
        assert all(future.done() and future.exception() is None for future in futures)
        await client.publish_many("t", [b"last"], qos=0)
        await client.publish_many("t", [])
        await client.flush()
        expected = [b"one", b"two", *(b"%d" % n for n in range(500)), *(b"m%d" % n for n in range(5000)), b"last"]
        assert await take(subscription, len(expected)) == expected

    with_client(test, loop)


def test_a_publish_returns_when_the_record_is_stored() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        for n in range(20):
            await client.publish("t", b"x")
            topic = quintlog.log.catalog.get(b"t")
            assert topic is not None
            assert quintlog.log.partition(topic).committed_seq == n + 1

    with_client(test)


def test_large_messages() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        for size in (0, 1 << 20, 15 << 20):
            await client.publish("t", bytes(size))
            assert await take(subscription, 1) == [bytes(size)]
        with pytest.raises(TooLarge):
            await client.publish("t", bytes(16 << 20))
        with pytest.raises(Refused, match="message too large") as refused:
            await client.publish("t", bytes((15 << 20) + 1))
        assert (refused.value.code, refused.value.retryable) == (400, False)

    with_client(test)


def test_refusals_concern_their_message_only() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        good = await client.send("t", b"good")
        bad = await client.send("t", b"x" * 2000)
        behind = await client.send("t", b"behind")
        with pytest.raises(Refused):
            await client.publish_many("t", [b"a", b"y" * 2000, b"b"])
        await client.flush()
        assert good.exception() is None
        assert behind.exception() is None
        assert isinstance(bad.exception(), Refused)

    with_client(test, topics={"record_bytes_max": "1000"})


def test_what_cannot_be_sent() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        with pytest.raises(ValueError, match="QoS"):
            await client.publish("t", b"x", qos=2)
        with pytest.raises(ValueError, match="topic"):
            await client.publish("", b"x")
        with pytest.raises(ValueError, match="UTF-8"):
            await client.publish(b"\xff", b"x")
        with pytest.raises(TypeError):
            await client.publish("t", "text")  # type: ignore[arg-type]

    with_client(test)


def test_rights(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = tmp_path / "secret"
    secret.write_text(add_key(path, "writer", publish=["ok.*"], subscribe=[]) + "\n")

    async def main() -> None:
        settings = {**ALONE, "blipmq": {"listen": "127.0.0.1:0", "key_file": str(path)}}
        async with running(settings=settings) as quintlog:
            address = str(quintlog.addresses["blipmq"])
            with pytest.raises(Refused, match="invalid API key") as refused:
                async with blipmq.connect(address, key="wrong"):
                    pass
            assert refused.value.code == 401
            async with blipmq.connect(address, key=secret, **FAST) as client:
                await client.publish("ok.1", b"x")
                with pytest.raises(Refused, match="not allowed"):
                    await client.publish("other", b"x")
                with pytest.raises(Refused, match="not allowed"):
                    await client.subscribe("ok.1")
                await client.publish("ok.1", b"y")

    asyncio.run(main())


# --- subscriptions


def test_a_subscription_goes_on_with_its_id() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with client.subscribe("t") as first:
            await client.publish_many("t", [b"%d" % n for n in range(10)])
            assert await take(first, 4) == [b"0", b"1", b"2", b"3"]
        async with blipmq.connect(str(quintlog.addresses["blipmq"])) as other:
            again = await other.subscribe("t", resume=first.id)
            assert again.id == first.id
            assert await take(again, 6) == [b"%d" % n for n in range(4, 10)]

    with_client(test, blipmq={"retry_backoff_ms": "50"})


def test_what_is_not_acknowledged_comes_again() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        async with client.subscribe("t") as subscription:
            await client.publish("t", b"x")
            first = await subscription.next(5)
            again = await subscription.next(5)
            assert first == again
            assert first.tag == 1
            await again.ack()
            await first.ack()  # the second one is refused; nobody minds
            await subscription.flush()
            await client.publish("t", b"y")
            assert (await subscription.next(5)).value == b"y"

    with_client(test, blipmq={"retry_backoff_ms": "30"})


def test_acknowledgements_are_sent_before_closing() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with client.subscribe("t") as subscription:
            await client.publish_many("t", [b"x"] * 100)
            await take(subscription, 100)
        cursor = quintlog.log.cursors.get(subscription.id)
        assert cursor is not None
        assert cursor.deliveries.floor == 100

    with_client(test)


def test_qos_0() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        async with client.subscribe("t", qos=0) as subscription:
            await client.publish_many("t", [b"1", b"2"])
            message = await subscription.next(5)
            assert (message.value, message.tag, message.topic) == (b"1", None, b"t")
            await message.ack()
            assert await take(subscription, 1) == [b"2"]

    with_client(test)


def test_batches_and_forms_of_a_value() -> None:
    async def test(client: blipmq.Client, _quintlog: Server) -> None:
        subscription = client.subscribe("t")
        async with subscription:
            await client.publish_many("t", [b'{"n": %d}' % n for n in range(300)])
            seen: list[int] = []
            async for batch in subscription.batches(max_records=50):
                assert 1 <= len(batch) <= 50
                seen += [message.json()["n"] for message in batch]
                assert batch.records()[0].text.startswith("{")
                await batch.ack()
                if len(seen) == 300:
                    break
            assert seen == list(range(300))
            assert subscription.position == 301
            with pytest.raises(TypeError, match="reset"):
                await subscription.seek(1)

    with_client(test)


def test_handlers() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        await client.publish_many("t", [b"%d" % n for n in range(50)])
        failed: set[bytes] = set()
        handled: set[bytes] = set()
        busy = most = 0

        async def handle(message: blipmq.Message) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.001)
            busy -= 1
            if message.value.endswith(b"7") and message.value not in failed:
                failed.add(message.value)
                raise RuntimeError("not this time")
            handled.add(message.value)
            if len(handled) == 50:
                asyncio.get_running_loop().call_soon(lambda: tasks.append(asyncio.ensure_future(subscription.close())))

        tasks: list[asyncio.Future[None]] = []
        await subscription.run(handle, concurrency=4)
        await tasks[0]
        assert most == 4
        assert subscription.failures == len(failed) == 5
        cursor = quintlog.log.cursors.get(subscription.id)
        assert cursor is not None
        assert cursor.deliveries.floor == 50

    with_client(test, blipmq={"retry_backoff_ms": "40"})


def test_a_slow_application_is_not_flooded() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        subscription = await client.subscribe("t")
        await client.publish_many("t", [b"%d" % n for n in range(200)])
        values = []
        for _ in range(40):
            message = await subscription.next(5)
            await asyncio.sleep(0.02)
            values.append(message.value)
            await message.ack()
        assert quintlog.log.cursors.totals("blipmq").redelivered == 0
        assert values == [b"%d" % n for n in range(40)]

    with_client(test, blipmq={"retry_backoff_ms": "200"})


def test_the_end_of_the_client_ends_its_subscriptions() -> None:
    async def test(client: blipmq.Client, quintlog: Server) -> None:
        async with blipmq.connect(str(quintlog.addresses["blipmq"])) as other:
            subscription = await other.subscribe("t")
            waiting = asyncio.ensure_future(subscription.next())
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await other.publish("t", b"x")
        with pytest.raises(Closed):
            await other.subscribe("t")

    with_client(test)


# --- through restarts


def test_everything_goes_on_after_a_restart_of_the_server() -> None:
    with server(settings={**ALONE, "blipmq": {"listen": "127.0.0.1:0", "retry_backoff_ms": "50"}}) as process:

        async def main() -> None:
            host, port = process.address("blipmq")
            async with blipmq.connect(f"{host}:{port}", **FAST) as client:
                subscription = await client.subscribe("t")
                seen: set[bytes] = set()
                sent: list[bytes] = []
                events: list[str] = []

                async def watch() -> None:
                    async for event in client.events():
                        events.append(event.name)

                async def publish() -> None:
                    for n in range(300):
                        await client.publish("t", b"%d" % n)
                        sent.append(b"%d" % n)

                watcher = asyncio.ensure_future(watch())
                publisher = asyncio.ensure_future(publish())
                for _ in range(2):
                    count = len(sent)
                    await until(lambda count=count: len(sent) >= count + 30)
                    await asyncio.to_thread(process.kill)
                    await asyncio.to_thread(process.restart)
                await asyncio.wait_for(publisher, 30)
                while len(seen) < 300:
                    message = await subscription.next(10)
                    seen.add(message.value)
                    await message.ack()
                assert events.count("disconnected") == 2
                watcher.cancel()

        asyncio.run(main())


# --- a scripted server


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
        with contextlib.suppress(ConnectionError):
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
        (lambda frame: codec.pong(frame.cid), ProtocolError),
        (lambda frame: b"\0\0\0\0" + codec.pong(frame.cid), ProtocolError),
        (lambda frame: codec.frame(FrameType.NACK, frame.cid, b"\0"), ProtocolError),
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
        elif frame.type == FrameType.ACK:
            self.acked.append(frame.cid)


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


def test_acknowledgements_that_were_not_confirmed_are_sent_again() -> None:
    async def main() -> None:
        original = Original()
        async with scripted(original) as address, blipmq.connect(address, **FAST) as client:
            subscription = await client.subscribe("t")
            original.queues[2].append(b"a")
            message = await subscription.next(5)
            answer = original.answer

            def lose(frame: Frame, writer: asyncio.StreamWriter) -> None:
                if frame.type == FrameType.ACK:
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
        script = Script()
        script.on_frame = lambda frame, writer: (
            writer.write(codec.nack(frame.cid, code, text)) if frame.type == FrameType.POLL else pongs(frame, writer)
        )
        async with scripted(script) as address, blipmq.connect(address, **FAST) as client:
            subscription = await client.subscribe("t", resume=5)
            with pytest.raises(Refused, match=text):
                await subscription.next(5)
            before = script.connections
            await asyncio.sleep(0.05)
            assert script.connections == before, "it is not dialled again"

    asyncio.run(main())

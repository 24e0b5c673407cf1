"""The TANK client against a scripted peer: quirks of the original server, lost connections, answers that never come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from netserver import errors, tank
from netserver.tank import client as client_module
from netserver.tank import codec, messages, wire
from netserver.tank.messages import ConsumeCode, ConsumedPartition, ConsumedTopic, ConsumeResponse
from tests.echo import until
from tests.tank_peer import bundle, sparse

pytestmark = pytest.mark.whole

Answer = Callable[[messages.Request], bytes | messages.Response | None]
CLOSE = b""


class Script:
    """A server whose answers a function gives: frames, nothing, or CLOSE."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[messages.Request] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        writer.write(b"\x03\0\0\0\0")
        decoder = codec.request_decoder()
        while data := await reader.read(1 << 16):
            for request in decoder.feed(data):
                if isinstance(request, messages.Ping):
                    continue
                self.requests.append(request)
                answer = self.answer(request)
                if answer == CLOSE:
                    writer.close()
                    return
                if answer is not None:
                    writer.write(answer if isinstance(answer, bytes) else codec.encode_response(answer))
        writer.close()

    def kinds(self) -> list[str]:
        return [type(request).__name__.removesuffix("Request") for request in self.requests]


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[tuple[Script, str]]:
    script = Script(answer)
    listener = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    try:
        yield script, f"{host}:{port}"
    finally:
        listener.close()
        for writer in script.writers:
            writer.transport.abort()
        await listener.wait_closed()


def play(answer: Answer, test: Callable[[Script, tank.Client], Awaitable[None]], **options: object) -> Script:
    async def main() -> Script:
        async with scripted(answer) as (script, address):
            async with tank.connect(address, backoff=lambda _: 0.01, **options) as client:  # type: ignore[arg-type]
                await test(script, client)
            return script

    return asyncio.run(asyncio.wait_for(main(), 30))


def discovered(request: messages.Request, last_seq: int) -> messages.Response | None:
    if isinstance(request, messages.DiscoverPartitionsRequest):
        return messages.DiscoverPartitionsResponse(
            request.request_id, request.topic, (messages.PartitionRange(min(last_seq, 1), last_seq),) * 2
        )
    return None


def chunk_of(*bundles: bytes) -> bytes:
    return b"".join(wire.varint(len(data)) + data for data in bundles)


def consumed(request: messages.ConsumeRequest, *partitions: ConsumedPartition) -> ConsumeResponse:
    return ConsumeResponse(request.request_id, (ConsumedTopic(request.topics[0].name, partitions),))


# --- quirks of servers


def test_a_cut_last_bundle_is_left_out_and_asked_for_again() -> None:
    whole = [bundle(b"a" * 300), bundle(b"b" * 300), bundle(b"c" * 300)]
    log = chunk_of(*whole)
    sizes = []

    def answer(request: messages.Request) -> messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            entry = request.topics[0].partitions[0]
            sizes.append(entry.fetch_bytes)
            start = len(chunk_of(*whole[: entry.seq - 1]))
            chunk = log[start : start + entry.fetch_bytes]
            return consumed(request, ConsumedPartition(0, 0, 3, entry.seq, chunk)) if chunk else None
        return discovered(request, 3)

    async def test(_: Script, client: tank.Client) -> None:
        async with client.subscribe("t", start=1, fetch_bytes=100) as subscription:
            assert [(await subscription.next(5)).value[:1] for _ in range(3)] == [b"a", b"b", b"c"]

    play(answer, test)
    assert sizes[:3] == [100, 200, 400]


def test_an_empty_answer_with_a_moved_mark_loses_nothing() -> None:
    asked = []

    def answer(request: messages.Request) -> messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            seq = request.topics[0].partitions[0].seq
            asked.append(seq)
            if len(asked) == 1:  # the original's answer when less than the minimum has come
                return consumed(request, ConsumedPartition(0, 0, 9, 0))
            if len(asked) == 2:
                return consumed(
                    request, ConsumedPartition(0, 0, 9, 6, chunk_of(bundle(b"6", b"7"), bundle(b"8", b"9")))
                )
            return None
        return discovered(request, 5)

    async def test(_: Script, client: tank.Client) -> None:
        async with client.subscribe("t", start=tank.LATEST) as subscription:
            assert [(await subscription.next(5)).value for _ in range(4)] == [b"6", b"7", b"8", b"9"]

    play(answer, test)
    assert asked[:2] == [6, 6]


def test_messages_before_the_one_asked_for_are_left_out_and_low_marks_do_not_matter() -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            seq = request.topics[0].partitions[0].seq
            if seq == 3:
                return consumed(request, ConsumedPartition(0, 0, 1, 1, chunk_of(bundle(b"1", b"2", b"3", b"4"))))
            if seq == 5:
                return consumed(
                    request, ConsumedPartition(0, ConsumeCode.SPARSE_FIRST, 0, None, chunk_of(sparse(7, 9)))
                )
            return None
        return discovered(request, 9)

    async def test(_: Script, client: tank.Client) -> None:
        async with client.subscribe("t", start=3) as subscription:
            assert [(await subscription.next(5)).seq for _ in range(4)] == [3, 4, 7, 9]
            assert subscription.position == 10

    play(answer, test)


def test_answers_of_waits_may_repeat_a_topic() -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            one = ConsumedTopic(b"t", (ConsumedPartition(1, 0, 1, 1, chunk_of(bundle(b"x"))),))
            two = ConsumedTopic(b"t", (ConsumedPartition(0, 0, 0, 0),))
            return ConsumeResponse(request.request_id, (one, two))
        return None

    async def test(_: Script, client: tank.Client) -> None:
        second, first = await client.fetch([("t", 0, 1), ("t", 1, 1)], max_wait_ms=50)
        assert (second.partition, first.partition) == (1, 0)
        assert second.batch is not None
        assert first.batch is None

    play(answer, test)


def test_unknown_answers_are_ignored() -> None:
    def answer(request: messages.Request) -> bytes | None:
        if isinstance(request, messages.StatusRequest):
            strays = messages.StatusResponse(999, 0, 0, 0, 0, 0, 0), messages.ProduceResponse(998, b"\0")
            own = messages.StatusResponse(request.request_id, 1, 2, 3, 4, 5, 6)
            return b"".join(map(codec.encode_response, (*strays, own)))
        return None

    async def test(_: Script, client: tank.Client) -> None:
        assert (await client.status()).topics == 1

    play(answer, test)


@pytest.mark.parametrize(
    ("entry", "code", "retryable"),
    [
        (ConsumedPartition(0, 0xFB), 0xFB, True),
        (ConsumedPartition(0, 0xFC, leader=messages.Leader("1.2.3.4", 5)), 0xFC, True),
        (ConsumedPartition(0, 0xFD), 0xFD, True),
        (ConsumedPartition(0, 0xFF), 0xFF, False),
    ],
)
def test_faults_of_reading(entry: ConsumedPartition, code: int, retryable: bool) -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        return consumed(request, entry) if isinstance(request, messages.ConsumeRequest) else discovered(request, 1)

    async def test(_: Script, client: tank.Client) -> None:
        with pytest.raises(errors.Refused) as refused:
            await client.subscribe("t", start=1).next(5)
        assert (refused.value.code, refused.value.retryable) == (code, retryable)

    play(answer, test)


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (b"\x02", errors.NotStored),
        (b"\x03", errors.Unknown),
        (b"\x04", errors.Unknown),
        (b"\x0a", errors.Refused),
        (b"\xfc\x01\x02\x03\x04\x05\x00", errors.Refused),
        (b"\xfd", errors.Refused),
        (b"\xfe", errors.Refused),
        (b"\xff", errors.Refused),
    ],
)
def test_faults_of_publishing(codes: bytes, kind: type[errors.QuintlogError]) -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        return (
            messages.ProduceResponse(request.request_id, codes)
            if isinstance(request, messages.ProduceRequest)
            else None
        )

    async def test(_: Script, client: tank.Client) -> None:
        with pytest.raises(kind) as problem:
            await client.publish("t", b"x")
        if isinstance(problem.value, errors.Unknown):
            assert list(problem.value.records) == [(b"t", 0, b"", b"x")]

    play(answer, test)


# --- connections


def test_a_publish_that_was_sent_is_not_sent_again() -> None:
    def answer(request: messages.Request) -> bytes | messages.Response | None:
        if isinstance(request, messages.ProduceRequest):
            value = bytes(request.topics[0].partitions[0].bundle)[-1:]
            return CLOSE if value == b"x" else messages.ProduceResponse(request.request_id, b"\0")
        return None

    async def test(script: Script, client: tank.Client) -> None:
        with pytest.raises(errors.Unknown) as unknown:
            await client.publish("t", b"x", key=b"k")
        assert list(unknown.value.records) == [(b"t", 0, b"k", b"x")]
        assert unknown.value.stored is None
        await client.publish("t", b"y")  # on the next connection
        assert script.kinds() == ["Produce", "Produce"]
        assert script.connections == 2

    play(answer, test)


def test_questions_are_asked_again_on_a_new_connection() -> None:
    def answer(request: messages.Request) -> bytes | messages.Response | None:
        if isinstance(request, messages.StatusRequest):
            if script_state["closes"]:
                script_state["closes"] -= 1
                return CLOSE
            return messages.StatusResponse(request.request_id, 1, 2, 3, 4, 5, 6)
        return CLOSE if isinstance(request, messages.CreateTopicRequest) and script_state["create"] else None

    script_state = {"closes": 2, "create": True}

    async def test(script: Script, client: tank.Client) -> None:
        assert (await client.status()).topics == 1
        assert script.connections == 3
        with pytest.raises(errors.Unknown):
            await client.create_topic("t")

    play(answer, test)


def test_a_subscription_goes_on_behind_what_it_has() -> None:
    asked = []

    def answer(request: messages.Request) -> bytes | messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            seq = request.topics[0].partitions[0].seq
            asked.append(seq)
            if seq == 1 or (seq == 2 and asked.count(2) == 3):
                return consumed(request, ConsumedPartition(0, 0, seq, seq, chunk_of(bundle(b"%d" % seq))))
            return CLOSE if seq == 2 else None
        return discovered(request, 1)

    async def test(_: Script, client: tank.Client) -> None:
        async with client.subscribe("t", start=1) as subscription:
            assert [(await subscription.next(5)).value for _ in range(2)] == [b"1", b"2"]

    play(answer, test)
    assert asked[:4] == [1, 2, 2, 2]


def test_a_server_that_does_not_answer_a_poll_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FETCH_MARGIN_S", 0.1)

    def answer(request: messages.Request) -> bytes | messages.Response | None:
        if isinstance(request, messages.ConsumeRequest) and len(polls) > 1:
            return consumed(request, ConsumedPartition(0, 0, 1, 1, chunk_of(bundle(b"x"))))
        if isinstance(request, messages.ConsumeRequest):
            polls.append(request)
        return discovered(request, 1)

    polls: list[messages.Request] = []

    async def test(script: Script, client: tank.Client) -> None:
        async with client.subscribe("t", start=1, max_wait_ms=10) as subscription:
            assert (await subscription.next(5)).value == b"x"
        assert script.connections > 1

    play(answer, test)


def test_publishes_and_questions_without_an_answer_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SWEEP_S", 0.02)
    monkeypatch.setattr("netserver.tank.topics.DISCOVERY_TIMEOUT_S", 0.05)

    async def test(_: Script, client: tank.Client) -> None:
        with pytest.raises(errors.Unknown):
            await client.publish("t", b"x")
        with pytest.raises(errors.Timeout):
            await client.status()
        assert client.window.records == 0

    play(lambda _: None, test, publish_timeout_s=0.05)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x01\x03\0\0\0abc",
        b"\x09\0\0\0\0",
        b"\x0a\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_garbage_ends_the_connection(garbage: bytes) -> None:
    def answer(request: messages.Request) -> bytes | messages.Response | None:
        if isinstance(request, messages.StatusRequest):
            if len(sent) == 0:
                sent.append(request)
                return garbage
            return messages.StatusResponse(request.request_id, 1, 2, 3, 4, 5, 6)
        return None

    sent: list[messages.Request] = []

    async def test(script: Script, client: tank.Client) -> None:
        reasons = []

        async def listen() -> None:
            async for event in client.events():
                if event.name == "disconnected":
                    reasons.append(event.reason)

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0)
        assert (await client.status()).topics == 1
        await until(lambda: reasons)
        assert isinstance(reasons[0], errors.ProtocolError)
        listening.cancel()

    play(answer, test)


def test_an_invalid_bundle_is_told_and_harms_nothing_else() -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        if isinstance(request, messages.ConsumeRequest):
            return consumed(request, ConsumedPartition(0, 0, 1, 1, chunk_of(b"\x04\x09")))
        if isinstance(request, messages.StatusRequest):
            return messages.StatusResponse(request.request_id, 1, 2, 3, 4, 5, 6)
        return discovered(request, 1)

    async def test(script: Script, client: tank.Client) -> None:
        with pytest.raises(errors.ProtocolError):
            await client.fetch([("t", 0, 1)])
        with pytest.raises(errors.ProtocolError):
            await client.subscribe("t", start=1).next(5)
        await client.status()
        assert script.connections == 1

    play(answer, test)


def test_an_answer_that_does_not_fit_its_publish() -> None:
    def answer(request: messages.Request) -> messages.Response | None:
        return (
            messages.ProduceResponse(request.request_id, b"") if isinstance(request, messages.ProduceRequest) else None
        )

    async def test(_: Script, client: tank.Client) -> None:
        with pytest.raises(errors.Unknown):
            await client.publish("t", b"x")

    play(answer, test)


def test_giving_up() -> None:
    async def main() -> None:
        async with scripted(lambda _: None) as (script, address):
            client = await tank.connect(address, backoff=lambda _: 0.01, give_up_after_s=0.3)
            waiting = await client.send("t", b"x")
            question = asyncio.ensure_future(client.status())
            await until(lambda: len(script.requests) == 2)
            script.answer = lambda _: CLOSE
        with pytest.raises(errors.Unknown):
            await waiting
        with pytest.raises(errors.ConnectionFailed):
            await question
        await until(lambda: not client.connected and client._end is not None)
        with pytest.raises(errors.ConnectionFailed):
            await client.publish("t", b"y")
        await client.close()

    asyncio.run(asyncio.wait_for(main(), 30))

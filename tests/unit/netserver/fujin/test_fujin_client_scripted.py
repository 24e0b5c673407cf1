"""The Fujin client against a scripted server, which does what the original does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve as quic_serve
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from netserver import errors, fujin
from netserver.fujin import codec, subscriber
from netserver.fujin.codec import (
    Ack,
    Answer,
    Command,
    ConnectReader,
    ConnectWriter,
    Decoder,
    Disconnect,
    Options,
    Write,
)
from tests.certificates import self_signed
from tests.echo import run

pytestmark = pytest.mark.whole


class Original(QuicConnectionProtocol):
    """Answers WRITEs at once, as the original does; ``script`` says what else happens."""

    script: Callable[[Original, int, Command], bytes | None]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.decoders: dict[int, Decoder] = {}

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if not isinstance(event, events.StreamDataReceived):
            return
        decoder = self.decoders.setdefault(event.stream_id, Decoder(Options(1 << 20)))
        decoder.feed(event.data)
        while (command := decoder.next()) is not None:
            answer = type(self).script(self, event.stream_id, command)
            if answer is None:
                answer = self.usual(event.stream_id, command)
            self._quic.send_stream_data(event.stream_id, answer)
            if isinstance(command, Disconnect):
                self._quic.send_stream_data(event.stream_id, b"", True)
                self._quic.stop_stream(event.stream_id, 0)  # the original does at the end of every stream
        self.transmit()

    def usual(self, stream_id: int, command: Command) -> bytes:
        if isinstance(command, Write):
            return codec.done(Answer.WRITE, command.cid)
        if isinstance(command, ConnectReader):
            return codec.connected()
        return codec.DISCONNECT if isinstance(command, Disconnect) else b""


def with_original(
    tmp_path: Path,
    script: Callable[[Original, int, Command], bytes | None],
    test: Callable[[fujin.Client], Awaitable[None]],
    **options: Any,
) -> None:
    certificate, key = self_signed(tmp_path)

    async def main() -> None:
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["fujin"])
        configuration.load_cert_chain(certificate, key)
        kind = type("Scripted", (Original,), {"script": script})
        quic = await quic_serve("127.0.0.1", 0, configuration=configuration, create_protocol=kind)
        assert quic._transport is not None
        port = quic._transport.get_extra_info("sockname")[1]
        try:
            async with fujin.connect(f"127.0.0.1:{port}", ca=certificate, **options) as client:
                await test(client)
        finally:
            quic.close()

    run("asyncio", main())


def test_answers_in_any_order(tmp_path: Path) -> None:
    kept: list[bytes] = []

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if not isinstance(command, Write):
            return None
        kept.append(codec.done(Answer.WRITE, command.cid, "no" if command.message == b"3" else None))
        return b"" if len(kept) < 6 else b"".join(reversed(kept))

    async def test(client: fujin.Client) -> None:
        futures = [await client.send("t", b"%d" % number) for number in range(6)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(one, errors.Refused) for one in found] == [number == 3 for number in range(6)]

    with_original(tmp_path, script, test)


@pytest.mark.parametrize(("code", "kind"), [(0x100 + 116, "wanted"), (0x100 + 42, "refused")])
def test_a_server_that_does_not_take_the_client_says_so_after_the_handshake(
    tmp_path: Path, code: int, kind: str
) -> None:
    """With QUIC the client's handshake is complete before the server has seen its certificate: whether it hears of it
    while it connects, or when it publishes, is chance."""

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        peer._quic.close(code, reason_phrase="nobody who is let in")
        return b""

    async def test(client: fujin.Client) -> None:
        await client.publish("t", b"one")

    with pytest.raises(errors.TlsFailed) as caught:
        with_original(tmp_path, script, test, flush_timeout_s=0.1)
    assert caught.value.kind == kind
    assert caught.value.stored is False


def test_what_came_before_the_end_of_a_refused_stream_is_read(tmp_path: Path) -> None:
    """STOP_SENDING may be seen before the last bytes of a stream."""

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, ConnectReader):
            peer._quic.stop_stream(stream_id, 0)
            return codec.connected() + b"".join(codec.message(b"id", b"m%d" % number) for number in range(3))
        return None

    async def test(client: fujin.Client) -> None:
        reader = client.subscribe("t")
        assert [(await reader.next(5)).value for _ in range(3)] == [b"m0", b"m1", b"m2"]

    with_original(tmp_path, script, test)


def test_a_reader_that_the_server_ends_is_opened_again(tmp_path: Path) -> None:
    connects: list[int] = []

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, ConnectReader):
            connects.append(stream_id)
            if len(connects) == 1:
                peer._quic.send_stream_data(stream_id, codec.connected() + codec.connected("broker is gone"), True)
                return b""
            return codec.connected() + codec.message(b"", b"m")
        return None

    async def test(client: fujin.Client) -> None:
        reader = client.subscribe("t")
        assert (await reader.next(5)).value == b"m"
        assert len(connects) == 2

    def without_empty(peer: Original, stream_id: int, command: Command) -> bytes | None:
        answer = script(peer, stream_id, command)
        if answer == b"":
            peer.transmit()
            peer.usual = lambda *_: b""  # type: ignore[method-assign]
        return answer

    with_original(tmp_path, without_empty, test)


def test_an_answer_that_has_no_place_ends_the_connection(tmp_path: Path) -> None:
    turns: list[int] = []

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, Write) and not turns:
            turns.append(1)
            return codec.done(Answer.WRITE, command.cid + 77)
        return None

    async def test(client: fujin.Client) -> None:
        await client.publish("t", b"x")
        assert turns == [1]

    with_original(tmp_path, script, test)


def test_a_writer_that_the_server_ends_is_made_again(tmp_path: Path) -> None:
    turns: list[int] = []

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, ConnectWriter):
            turns.append(stream_id)
        if isinstance(command, Write) and len(turns) == 1:
            return codec.DISCONNECT
        return None

    async def test(client: fujin.Client) -> None:
        await client.publish("t", b"x")
        assert len(turns) == 2

    with_original(tmp_path, script, test)


def test_what_was_answered_of_many_is_not_unknown(tmp_path: Path) -> None:
    def script(server: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, Write) and command.cid == 2:
            server.transmit()  # what was answered so far
            server.close()
            return b""
        return None

    async def test(client: fujin.Client) -> None:
        with pytest.raises(errors.Unknown) as caught:
            await client.publish_many("t", [b"a", b"b", b"c"])
        assert list(caught.value.records) == [(b"t", b"c")]

    with_original(tmp_path, script, test, resend=False, window=12)


def test_many_of_which_one_cannot_be_sent_are_refused_before(tmp_path: Path) -> None:
    async def test(client: fujin.Client) -> None:
        with pytest.raises(ValueError, match="0 bytes"):
            await client.publish_many("t", [b"a", b"b", b""])
        assert client.window.records == 0

    with_original(tmp_path, lambda *_: None, test, window=4)


def refusing(*refused: bytes) -> Callable[[Original, int, Command], bytes | None]:
    """Pushes m0 to m4 with their values as ids, and refuses to acknowledge some of them."""

    def script(peer: Original, stream_id: int, command: Command) -> bytes | None:
        if isinstance(command, ConnectReader):
            return codec.connected() + b"".join(codec.message(b"m%d" % n, b"m%d" % n) for n in range(5))
        if isinstance(command, Ack):
            ids = codec.strings(command.ids, command.size)
            results = b"".join(codec.result(one, "gone" if one in refused else None) for one in reversed(ids))
            return codec.acked(Answer(command.op), command.cid, command.size, results)
        return None

    return script


def test_a_refused_acknowledgement_is_told_to_its_caller_alone(tmp_path: Path) -> None:
    async def test(client: fujin.Client) -> None:
        reader = client.subscribe("t")
        messages = [await reader.next(5) for _ in range(5)]
        found = await asyncio.gather(*(message.ack() for message in messages), return_exceptions=True)
        assert [isinstance(one, errors.Refused) for one in found] == [False, True, False, True, False]
        assert isinstance(found[1], errors.Refused)
        assert (found[1].text, found[1].records) == ("gone", [messages[1]])

    with_original(tmp_path, refusing(b"m1", b"m3"), test)


def test_a_refusal_in_any_part_of_a_long_acknowledgement_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "ACK_IDS_MAX", 2)

    async def test(client: fujin.Client) -> None:
        async for batch in client.subscribe("t").batches():
            assert len(batch) == 5
            later = asyncio.ensure_future(batch.records()[4].ack())
            with pytest.raises(errors.Refused, match="gone") as refused:
                await batch.ack()
            assert [message.value for message in refused.value.records] == [b"m0", b"m3"]  # type: ignore[attr-defined]
            await later
            return

    with_original(tmp_path, refusing(b"m0", b"m3"), test)


def test_handlers_go_on_after_a_refusal(tmp_path: Path) -> None:
    async def test(client: fujin.Client) -> None:
        reader = client.subscribe("t")
        handled: list[bytes] = []

        async def handle(message: fujin.Message) -> None:
            handled.append(message.value)
            if len(handled) == 5:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(reader.close()))

        await reader.run(handle)
        assert handled == [b"m%d" % number for number in range(5)]

    with_original(tmp_path, refusing(b"m0", b"m1", b"m2"), test)

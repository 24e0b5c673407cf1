"""Recognises what answers at an address when it is not what the client expected: TLS or not, and which protocol.

Each question goes on a connection of its own: a ClientHello, and the first message of each protocol over TCP, which
changes nothing at the server. What another protocol's server makes of it does not matter: only an answer counts that
has the form of the protocol asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netserver.client.tls import ClientTls
from netserver.limits import RECOGNITION_S

ANSWER_BYTES: Final = 4096
TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""An alert or a handshake, of any version."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen.

    Attributes:
        tls: it speaks TLS; None: nobody can be reached there.
        protocol: its name as the clients have it; empty: none that is known here.
    """

    tls: bool | None
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class _Question:
    protocol: str
    ask: bytes
    fits: Callable[[bytes], bool]


def _questions() -> tuple[_Question, ...]:
    from netserver.blipmq import codec as blipmq
    from netserver.figg import codec as figg
    from netserver.tank.responses import PING_FRAME

    acks = (int(blipmq.FrameType.ACK), int(blipmq.FrameType.NACK))
    return (
        _Question("Figg", figg.ping(0), lambda data: data[:2] == figg.PONG.to_bytes(2, "big")),
        _Question("TANK", b"", lambda data: data[: len(PING_FRAME)] == PING_FRAME),  # its server speaks first
        _Question("BlipMQ", blipmq.hello(1), lambda data: len(data) > 12 and data[:3] == b"\0\0\0" and data[4] in acks),
        _Question("a JSON stream (reliably)", b"{}\n", lambda data: data[:2] == b'{"'),
        _Question("HTTP", b"GET / HTTP/1.0\r\n\r\n", lambda data: data[:7] == b"HTTP/1."),
    )


async def recognise(host: str, port: int, tls: ClientTls | None) -> Found:
    """Ask; never raises, and takes ``RECOGNITION_S`` at most twice.

    Args:
        tls: what the client speaks itself; behind TLS it is looked with that.
    """
    questions = _questions()
    hello, *answers = await asyncio.gather(
        _answer(host, port, _client_hello(), None),
        *(_answer(host, port, question.ask, None) for question in questions),
    )
    if hello is None:
        return Found(None)
    speaks_tls = hello[:2] in TLS_RECORDS
    if speaks_tls and tls is not None:
        answers = await asyncio.gather(*(_answer(host, port, question.ask, tls) for question in questions))
    for question, data in zip(questions, answers, strict=True):
        if data and question.fits(data):
            return Found(speaks_tls, question.protocol)
    return Found(speaks_tls)


async def answers_as(protocol: str, host: str, port: int, tls: ClientTls | None) -> bool:
    """Whether a server of this protocol answers there now; takes ``RECOGNITION_S`` at most."""
    question = next(question for question in _questions() if question.protocol == protocol)
    data = await _answer(host, port, question.ask, tls)
    return bool(data) and question.fits(data or b"")


async def _answer(host: str, port: int, ask: bytes, tls: ClientTls | None) -> bytes | None:
    """The first bytes that come; empty: none; None: there is no connection."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(RECOGNITION_S):
            context = tls.context() if tls is not None else None
            name = (tls.server_name or host) if tls is not None else None
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            writer.write(ask)
            return await reader.read(ANSWER_BYTES)
    except Exception:  # noqa: BLE001 - whatever it is, it tells nothing
        return None if writer is None else b""
    finally:
        if writer is not None:
            writer.transport.abort()


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()

"""A Fujin client's connection: a writer's stream that the window is written to, and further streams beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from netserver.errors import Closed, ConnectionFailed, ProtocolError, QuintlogError, TlsFailed
from netserver.fujin import codec
from netserver.fujin.codec import FujinError
from netserver.fujin.codec_answers import AnswerDecoder, Disconnected, Event, Stop
from netserver.fujin.limits import CLIENT_RECEIVE_BYTES_MAX
from netserver.quic.client import QuicDialer, Trust, addresses
from netserver.quic.peer import QuicPeer
from netserver.quic.stream import Bounds, QuicStream, StreamSession
from netserver.shell.counters import Counters
from netserver.shell.input_pressure import PublishPressure, ReceiveBudget

ALPN = "fujin"
UNLIMITED_BYTES = 1 << 50
CERTIFICATE_ALERTS = range(0x100 + 42, 0x100 + 49)
"""TLS's alerts from bad_certificate to unknown_ca (RFC 8446, 6.2), as QUIC carries them (RFC 9001, 4.8)."""
CERTIFICATE_EXPIRED = 0x100 + 45
CERTIFICATE_REQUIRED = 0x100 + 116
NO_APPLICATION_PROTOCOL = 0x100 + 120
"""TLS's alert of a server that speaks something else (RFC 7301, 3.2)."""
PREFETCH = "the application has not taken what was received"
CLOSE_S = 1.0
"""Streams that were told DISCONNECT have so long to end before the connection is closed."""


class Receiver(Protocol):
    """Who gets what comes on a stream."""

    def stream_answers(self, decoder: AnswerDecoder) -> None:
        """Take whole runs of answers out of the decoder's buffer, where that is faster."""

    def stream_event(self, event: Event) -> None:
        """One answer or message. Raises ProtocolError when it has no place here."""

    def stream_ended(self, error: QuintlogError) -> None:
        """The stream is over."""


class ClientStream:
    """A stream that the client has opened; see ``netserver.quic.stream.StreamSession``."""

    def __init__(self, link: Link, stream: QuicStream, receiver: Receiver, decoder: AnswerDecoder) -> None:
        self.stream = stream
        self._link = link
        self._receiver = receiver
        self._decoder = decoder
        self._is_over = False
        self._disconnecting = False

    @property
    def pending(self) -> int:
        return self._decoder.pending

    @property
    def needed(self) -> int:
        return self._decoder.needed

    def received(self, data: bytes) -> None:
        self._decoder.feed(data)
        self.released()

    def released(self) -> None:
        decoder, receiver = self._decoder, self._receiver
        try:
            while not self.stream.held and not self._is_over:
                receiver.stream_answers(decoder)
                event = decoder.next()
                if event is None:
                    return
                if isinstance(event, Stop):
                    self._link.stopping()
                elif isinstance(event, Disconnected):
                    self.over(ConnectionFailed("the server has ended the stream"))
                else:
                    receiver.stream_event(event)
        except FujinError as error:
            self._link.abort(ProtocolError(str(error), error.kind))
        except ProtocolError as error:
            self._link.abort(error)

    def eof(self) -> None:
        self.over(ConnectionFailed("the server has ended the stream"))
        self.stream.finish()

    def resume_output(self) -> None:
        self._link.resume_output()

    def broken(self, reason: str) -> None:
        if not self._link.is_ending:  # else the connection's own end says better why
            self.over(ConnectionFailed(reason))

    def over(self, error: QuintlogError) -> None:
        """Nothing more comes."""
        if not self._is_over:
            self._is_over = True
            self._link.streams.discard(self)
            self._receiver.stream_ended(error)
            self._link.check_idle()

    def write(self, data: bytes | bytearray) -> None:
        """Send."""
        self.stream.write(data)

    def pause(self, paused: bool) -> None:
        """Stop taking what comes, or go on; whoever waits for an answer on this stream must not stop it."""
        if paused and not self._disconnecting:
            self.stream.hold(PREFETCH)
        else:
            self.stream.release(PREFETCH)

    def disconnect(self) -> None:
        """Say DISCONNECT; the stream is over when the server has answered what is outstanding."""
        if not self._disconnecting and not self._is_over:
            self._disconnecting = True
            self.pause(False)
            self.stream.write(codec.DISCONNECT)
            if self._link.is_stopping:
                self.stream.end_output()  # so the server knows that STOP was read, and answers at once

    def abandon(self) -> None:
        """End it at once."""
        self._is_over = True
        self._link.streams.discard(self)
        self.stream.finish()


class Link:
    """One connection; see ``netserver.client.base.LinkLike`` and ``netserver.quic.stream.PeerHandler``."""

    def __init__(self, on_writable: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[QuintlogError] = loop.create_future()
        self.writable = False
        self.streams: set[ClientStream] = set()
        self.writer: ClientStream | None = None
        self.is_stopping = False
        self._on_writable = on_writable
        self._loop = loop
        self._peer: QuicPeer | None = None
        self._reason: QuintlogError | None = None
        self._handshake: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self._keepalive: asyncio.TimerHandle | None = None
        pressure = PublishPressure(UNLIMITED_BYTES, UNLIMITED_BYTES)
        budget = ReceiveBudget(CLIENT_RECEIVE_BYTES_MAX)
        self._bounds = Bounds(loop, pressure, budget, Counters("fujin client"))

    async def dial(self, host: str, port: int, trust: Trust, server_name: str, idle_timeout_s: float) -> None:
        """Connect to one of the addresses of ``host``.

        Raises:
            OSError, ConnectionFailed: none of them has answered.
            TlsFailed: a file cannot be used, or one of the two sides does not trust the other.
        """
        configuration = trust.configuration(server_name, ALPN, idle_timeout_s)
        problem: Exception | None = None
        for found in await addresses(host, port):
            self._handshake = self._loop.create_future()
            try:
                peer = QuicDialer(self._bounds).start(found, configuration, self._made)
            except OSError as error:
                problem = error
                continue
            self._peer = peer
            try:
                await self._handshake
                trust.check(peer.quic)
            except (ConnectionFailed, asyncio.CancelledError) as error:
                self._peer = None
                _say_goodbye(peer)
                if isinstance(error, asyncio.CancelledError) or not error.retryable:
                    raise
                problem = error
                continue
            self.writable = True
            self._keep_alive(idle_timeout_s / 3)
            return
        raise problem or ConnectionFailed(f"{host} has no address")

    @property
    def is_ending(self) -> bool:
        """The connection ends, and ``gone`` follows at once."""
        return self._peer is not None and self._peer.closing

    def open(self, first: bytes, receiver: Receiver, decoder: AnswerDecoder) -> ClientStream:
        """Open a stream with its first command.

        Raises:
            ConnectionFailed: the connection is gone.
        """
        if self._peer is None or self._peer.closing:
            raise self._reason or ConnectionFailed("the connection is gone")
        opened: list[ClientStream] = []

        def make(stream: QuicStream) -> StreamSession:
            opened.append(ClientStream(self, stream, receiver, decoder))
            return opened[0]

        self._peer.open_stream(make)
        self.streams.add(opened[0])
        opened[0].write(first)
        return opened[0]

    # --- netserver.quic.stream.PeerHandler

    def _made(self, peer: QuicPeer) -> Link:
        return self

    def connected(self, alpn: str | None) -> None:
        """The handshake is complete."""
        if not self._handshake.done():
            self._handshake.set_result(None)

    def opened(self, stream: QuicStream) -> StreamSession:
        """The server has opened a stream: that is PING."""
        return _Pong(stream)

    def gone(self, code: int, reason: str) -> None:
        """The connection is gone."""
        text = reason or "the connection was closed"
        if code == NO_APPLICATION_PROTOCOL:
            text = "a QUIC server answers, but not as Fujin; is it the port of another protocol?"
        problem = _tls_problem(code, text, self._handshake.done())
        problem = problem or ConnectionFailed(text if not code else f"{text} (code {code:#x})")
        if not self._handshake.done():
            self._handshake.set_exception(problem)
            self._handshake.exception()
        elif self._peer is not None:
            self._over(self._reason or problem)

    # --- netserver.client.base.LinkLike

    def write(self, data: bytes | bytearray) -> None:
        """Send on the writer's stream."""
        if self.writer is not None:
            self.writer.write(data)
            self.writable = self.writer.stream.writable and not self.is_stopping

    def pause_reading(self) -> None:
        """Nothing to do: what is read are answers; a subscription holds its own stream."""

    def resume_reading(self) -> None:
        """See ``pause_reading``."""

    def close(self) -> None:
        """Say DISCONNECT on every stream, then close."""
        self._reason = self._reason or Closed("the client closed the connection")
        self._closing = True
        for stream in tuple(self.streams):
            stream.disconnect()
        if self.streams:
            self._loop.call_later(CLOSE_S, self._close_now)
        self.check_idle()

    def abort(self, reason: QuintlogError) -> None:
        """Close at once."""
        self._reason = self._reason or reason
        self._close_now()

    # --- inside

    def stopping(self) -> None:
        """The server has said STOP: send nothing new, end what there is, and go."""
        if not self.is_stopping:
            self.is_stopping = True
            self.writable = False
            self._reason = self._reason or ConnectionFailed("the server is about to stop")
            self._loop.call_soon(self.close)

    def resume_output(self) -> None:
        """There is room for output again."""
        if not self.is_stopping and self._peer is not None:
            self.writable = True
            self._on_writable()

    def check_idle(self) -> None:
        """Close the connection once its streams have ended, if that was asked for."""
        if self._closing and not self.streams:
            self._close_now()

    def _close_now(self) -> None:
        peer = self._peer
        if peer is not None:
            _say_goodbye(peer)
        self._over(self._reason or Closed("the client closed the connection"))

    def _over(self, reason: QuintlogError) -> None:
        self.writable = False
        self._peer = None
        if self._keepalive is not None:
            self._keepalive.cancel()
        for stream in tuple(self.streams):
            stream.over(reason)
        if not self.lost.done():
            self.lost.set_result(reason)

    def _keep_alive(self, interval_s: float) -> None:
        """Ask for a sign of life when nothing has come for a while: the idle timeout tells if there is none."""
        peer = self._peer
        if peer is not None:
            self._keepalive = self._loop.call_later(interval_s, self._keep_alive, interval_s)
            if self._loop.time() - peer.heard_at >= interval_s:
                peer.keep_alive()


def _tls_problem(code: int, text: str, is_up: bool) -> ConnectionFailed | None:
    """What an alert of TLS means; None: it is none about certificates.

    Args:
        is_up: the handshake is complete for us: it is the server that complains.
    """
    if code == CERTIFICATE_REQUIRED:
        return TlsFailed("the server wants a client certificate: cert= and key=", "wanted")
    if code not in CERTIFICATE_ALERTS:
        return None
    if is_up:
        return TlsFailed(f"the server does not take the client's certificate (cert=): {text}", "refused")
    if code == CERTIFICATE_EXPIRED:
        return TlsFailed(f"the server needs a new certificate, or one of the two clocks is wrong: {text}", "dates")
    if "match" in text:
        return TlsFailed(f"{text}: dial a name that is in its certificate, or give that as server_name=", "host")
    hint = "ca= names the file of its authority, or DATA/fujin-certificate.pem, or fingerprint="
    return TlsFailed(f"its certificate is of no authority that is trusted here: {hint} ({text})", "untrusted")


def _say_goodbye(peer: QuicPeer) -> None:
    """Close a connection and its socket: what the server may still send is of no interest."""
    if not peer.closing:
        peer.close(0, "")
    peer.forget()


class _Pong:
    """A stream that the server has opened: PING, whatever it says; answered when the server has ended its side."""

    pending = 0
    needed = 1

    def __init__(self, stream: QuicStream) -> None:
        self._stream = stream

    def received(self, data: bytes) -> None:
        """See ``StreamSession``."""

    def released(self) -> None:
        """See ``StreamSession``."""

    def eof(self) -> None:
        self._stream.write(codec.PONG)
        self._stream.finish()

    def resume_output(self) -> None:
        """See ``StreamSession``."""

    def broken(self, reason: str) -> None:
        """See ``StreamSession``."""

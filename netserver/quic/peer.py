"""QUIC connections on an event loop: the shell around a protocol's streams, for server and client alike.

``QuicPeer`` drives one connection, ``QuicStream`` (`netserver.quic.stream`) one bidirectional stream of it;
``netserver.quic.endpoint`` and ``netserver.quic.client`` own the sockets. As in ``netserver.shell.connection`` the
shell keeps every bound and the session turns bytes into engine calls and answers.

What costs is the datagram (about 50 us of Python each), so everything is done for many at once: the datagrams that
are there are taken first, then each stream's session gets the bytes in one piece, and what the sessions write leaves
together.

Bounds. Receiving: a stream's window is what its session has consumed, ``STREAM_WINDOW_BYTES`` more, or the rest of the
frame that it is in the middle of, for which memory is reserved first; a session that is held moves no window, so its
peer stops. Sending: sessions write into a queue per stream; QUIC gets ``SEND_AHEAD_BYTES`` at a time, and only what
the peer's windows allow, so that no turn of the loop has to build more packets than that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec

from aioquic.quic import events

from netserver.limits import (
    FRAME_STALL_S,
    PEER_WINDOW_BYTES,
    SEND_AHEAD_BYTES,
    STREAM_WINDOW_BYTES,
    UNCOUNTED_BYTES,
)
from netserver.quic.bounded import GONE, BoundedQuic, PacketDropped
from netserver.quic.stream import OVER, Bounds, Host, PeerHandler, QuicStream, StreamSession

if TYPE_CHECKING:
    from netserver.access.access import Visitor

log = logging.getLogger(__name__)
Args = ParamSpec("Args")

TIMER_SLACK_S: Final = 0.001
"""The loop's timers are no finer."""


def fenced(method: Callable[Concatenate[QuicPeer, Args], None]) -> Callable[Concatenate[QuicPeer, Args], None]:
    """An error in a connection ends that connection and nothing else: what the loop and the host call is fenced."""

    @functools.wraps(method)
    def run(peer: QuicPeer, /, *args: Args.args, **more: Args.kwargs) -> None:
        try:
            method(peer, *args, **more)
        except Exception:
            log.exception("%s %s: error in the connection; given up", peer.bounds.counters.name, peer.address)
            peer.bounds.counters.session_errors += 1
            peer.forget("internal error")

    return run


class QuicPeer:
    """One connection.

    Args:
        quic: the connection; for a client it has begun to connect.
        host: who owns the socket.
        handler: the protocol.
        bounds: what its streams answer to.

    Attributes:
        address: ``host:port`` of the other end, for people.
        is_connected: the handshake is complete.
        heard_at: loop time of the latest data on a stream.
        closing: it was closed, or is being closed by the other side.
        end_reason: what streams are told that break off with it.
        visitor: who a client is, once it is connected.
    """

    def __init__(
        self, quic: BoundedQuic, host: Host, handler: Callable[[QuicPeer], PeerHandler], bounds: Bounds
    ) -> None:
        self.quic = quic
        self.host = host
        self.bounds = bounds
        self.loop = bounds.loop
        self.address = "?"
        self.is_connected = False
        self.closing = False
        self.started_at = time.monotonic()
        self.heard_at = time.monotonic()
        self.streams: dict[int, QuicStream] = {}
        self.queued_bytes = 0
        self.held_bytes = 0
        self.barriers: set[QuicStream] = set()
        self.waiting_output: set[QuicStream] = set()
        self.is_dirty = False
        self.end_reason = "the connection is gone"
        self.visitor: Visitor | None = None
        self._own_streams = 0 if quic.configuration.is_client else 1
        self._finished: set[int] = set()
        self._ready: deque[QuicStream] = deque()
        self._blocked: dict[int, QuicStream] = {}
        self._touched: list[QuicStream] = []
        self._delivered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_gone = self._is_forgotten = False
        self._now = self.started_at
        self.handler: PeerHandler = handler(self)

    # --- for protocols

    @property
    def title(self) -> str:
        """Protocol and peer, for people."""
        return f"{self.bounds.counters.name} {self.address}"

    def open_stream(self, make_session: Callable[[QuicStream], StreamSession]) -> QuicStream:
        """Open a stream; the peer learns of it with its first bytes."""
        stream_id = self.quic.get_next_available_stream_id()
        stream = QuicStream(self, stream_id)
        self.streams[stream_id] = stream
        self.quic.send(stream_id, b"")  # takes the id
        stream.session = make_session(stream)
        return stream

    def close(self, code: int, reason: str) -> None:
        """Close the connection; streams are broken off at once."""
        if not self.closing:
            self.closing = True
            self.quic.close(code, reason_phrase=reason)
            self._flush_output()
            self._end(code, reason)

    def keep_alive(self) -> None:
        """Ask the other end for a sign of life."""
        self.quic.send_ping(0)
        self.host.wants_flush(self)

    # --- for the host

    @fenced
    def datagram(self, data: bytes, address: object, now: float) -> None:
        """Take a datagram; ``process`` must follow soon."""
        self._now = now
        try:
            self.quic.receive_datagram(data, address, now)
        except PacketDropped:
            return

    @fenced
    def process(self) -> None:
        """Handle what the datagrams of this turn, or a timer, have brought."""
        quic = self.quic
        while (event := quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                self._stream_data(event)
            elif isinstance(event, events.StreamReset):
                self._stream_reset(event.stream_id)
            elif isinstance(event, events.StopSendingReceived):
                self._stream_refused(event.stream_id)
            elif isinstance(event, events.ConnectionIdRetired):
                self.host.connection_id_retired(self, event.connection_id)
            elif isinstance(event, events.HandshakeCompleted):
                self.is_connected = True
                self.handler.connected(event.alpn_protocol)
            elif isinstance(event, events.ConnectionTerminated):
                self.closing = True
                self._end(event.error_code, event.reason_phrase)
                self._forget()
                return
        touched, self._touched = self._touched, []
        for stream in touched:
            stream.deliver()
        for stream in tuple(self.barriers):
            stream.check_barrier(quic)
        farewell = quic.farewell
        if farewell is not None:
            self.closing = True
            self._end(farewell.error_code, farewell.reason_phrase)
            self._forget()
            return
        self.move_window()
        at = quic.sends_nothing_before()
        if at is None or at <= self._now:
            self.host.wants_flush(self)
        elif self._timer is None or self._timer_at > at + TIMER_SLACK_S:
            self._set_timer(at)

    @fenced
    def flush(self) -> None:
        """Send what there is to send, as far as this turn allows."""
        self.is_dirty = False
        if self._is_forgotten:
            return
        if not self.closing:
            self._give_output()
        self._flush_output()
        if self._ready and not self.closing and self.quic.unsent_bytes < SEND_AHEAD_BYTES:
            self.host.wants_flush(self)

    def check_progress(self, now: float) -> None:
        """End streams whose half-sent frame does not get on."""
        for stream in tuple(self.streams.values()):
            stream.check_progress(now, FRAME_STALL_S, 1)

    def forget(self, reason: str = "given up") -> None:
        """Give the connection up without another word."""
        self.closing = True
        self._end(0, reason)
        self._forget()

    # --- for streams

    def queue_output(self, stream: QuicStream) -> None:
        """The stream has something to send."""
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)
            self.host.wants_flush(self)

    def open_stream_window(self, stream: QuicStream, end: int) -> None:
        """The stream's session can take bytes up to ``end``; worth telling the peer from half a window on."""
        sent = stream.window_end
        if end - sent >= STREAM_WINDOW_BYTES // 2 or (end > sent and sent - stream.delivered_bytes < UNCOUNTED_BYTES):
            stream.window_end = end
            self.quic.open_stream_window(stream.id, end)
            if sent - stream.delivered_bytes < STREAM_WINDOW_BYTES // 4 or self.quic.sends_nothing_before() is None:
                self.host.wants_flush(self)  # otherwise it goes along with the acknowledgement, which is soon

    def ended(self, stream: QuicStream) -> None:
        """FIN was given to QUIC."""
        if self.quic.is_receiving(stream.id):
            self.quic.stop_stream(stream.id, 0)
            self.host.wants_flush(self)
        if stream.id & 1 != self._own_streams:
            self._finished.add(stream.id)
        self._drop(stream)

    def move_window(self) -> None:
        """Let the peer send on all streams together what is neither kept by held sessions nor beyond the window.

        A client has as many streams as it wants, each with a window of its own: what it holds back on some of them must
        not keep the answers on others from coming.
        """
        held_bytes = 0 if self.quic.configuration.is_client else self.held_bytes
        end = self._delivered_bytes - held_bytes + PEER_WINDOW_BYTES
        if end - self.quic.window_end >= PEER_WINDOW_BYTES // 2:
            self.quic.open_window(end)
            if self.quic.sends_nothing_before() is None:
                self.host.wants_flush(self)

    # --- inside

    def _stream_data(self, event: events.StreamDataReceived) -> None:
        self._delivered_bytes += len(event.data)
        self.heard_at = self._now
        stream = self.streams.get(event.stream_id)
        if stream is None:
            if event.stream_id in self._finished or event.stream_id & 1 == self._own_streams or self.closing:
                return
            stream = QuicStream(self, event.stream_id)
            stream.session = self.handler.opened(stream)
            self.streams[event.stream_id] = stream
            stream.begin()
        if not stream.incoming and not stream.incoming_eof:
            self._touched.append(stream)
        if event.data:
            stream.incoming.append(event.data)
        if event.end_stream:
            stream.incoming_eof = True

    def _stream_reset(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            missing = self.quic.announced_bytes(stream_id) - stream.delivered_bytes - sum(map(len, stream.incoming))
            self._delivered_bytes += max(missing, 0)
            if stream.incoming:
                stream.deliver()
            stream.reset()
        else:
            self._never_began(stream_id)

    def _stream_refused(self, stream_id: int) -> None:
        self.quic.forget_unsent(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if self.quic.configuration.is_client:  # servers do that before the last bytes of every stream
                stream.refused()
                return
            if stream.incoming:
                stream.deliver()
            stream.refused()
            stream.stop_reading()
            self.ended(stream)
        else:
            self._never_began(stream_id)

    def _never_began(self, stream_id: int) -> None:
        """The peer has broken off a stream of which nothing came: end our side, so that another takes its place."""
        quic = self.quic
        if stream_id & 1 == self._own_streams or stream_id in self._finished or not quic.has_stream(stream_id):
            return
        self._finished.add(stream_id)
        if quic.room(stream_id) != GONE:
            quic.send(stream_id, b"", True)
        if quic.is_receiving(stream_id):
            quic.stop_stream(stream_id, 0)

    def _give_output(self) -> None:
        quic = self.quic
        if quic.windows_opened:
            for stream_id in quic.windows_opened:
                stream = self._blocked.pop(stream_id, None)
                if stream is not None:
                    self._ready.append(stream)
            quic.windows_opened.clear()
        ready = self._ready
        while ready and quic.unsent_bytes < SEND_AHEAD_BYTES:
            stream = ready.popleft()
            if stream.feed(quic):
                ready.append(stream)
            elif stream.has_output:
                self._blocked[stream.id] = stream
            else:
                stream.is_queued = False
        if self.waiting_output:
            for stream in tuple(self.waiting_output):
                self.waiting_output.discard(stream)
                if stream.writable and not stream.closed:
                    stream.call(stream.session.resume_output)

    def _flush_output(self) -> None:
        quic = self.quic
        now = time.monotonic()
        datagrams = quic.datagrams_to_send(now)
        if quic.new_ids:  # before the peer can use them
            for connection_id in quic.new_ids:
                self.host.connection_id_issued(self, connection_id)
            quic.new_ids.clear()
        if datagrams:
            self.host.send(self, datagrams)
        self._arm()

    def _arm(self) -> None:
        """See to it that the timer fires in time; one that fires too early only looks again."""
        at = self.quic.get_timer()
        if at is None:
            return
        if self._timer is None or self._timer_at > at + TIMER_SLACK_S:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._time)

    @fenced
    def _time(self) -> None:
        self._timer = None
        at = self.quic.get_timer()
        now = time.monotonic()
        if at is None:
            return
        if at > now:
            self._arm()
            return
        self.quic.handle_timer(max(now, at))
        self.process()

    def _drop(self, stream: QuicStream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self._blocked.pop(stream.id, None)
            self.waiting_output.discard(stream)
            stream.gone()
        if len(self._finished) > 2 * len(self.streams) + 256:
            self._finished = {one for one in self._finished if self.quic.has_stream(one)}

    def _end(self, code: int, reason: str) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        self.end_reason = reason or self.end_reason
        for stream in tuple(self.streams.values()):
            self._drop(stream)
        self._ready.clear()
        self.handler.gone(code, reason)

    def _forget(self) -> None:
        self._is_forgotten = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.quic.let_go()
        self.host.ended(self)
        self.handler = OVER  # it holds this connection

"""One stream of a QUIC connection: its windows, its queue of output, its session; and what belongs to a connection.

See `netserver.quic.peer` for the bounds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol

from netserver.limits import (
    OUTPUT_HIGH_BYTES,
    PEER_OUTPUT_BYTES,
    SEND_SLICE_BYTES,
    STREAM_WINDOW_BYTES,
    UNCOUNTED_BYTES,
)
from netserver.quic.bounded import GONE, BoundedQuic
from netserver.quic.udp import Datagram
from netserver.shell.counters import Counters
from netserver.shell.input_pressure import PublishPressure, ReceiveBudget
from netserver.shell.makers import maker_of
from netserver.shell.pacing import Brakes

log = logging.getLogger(__name__)
Args = ParamSpec("Args")
Bytes = bytes | bytearray | memoryview

if TYPE_CHECKING:
    from netserver.access.access import Visitor
    from netserver.quic.peer import QuicPeer


class StreamSession(Protocol):
    """A protocol's half of a stream. It keeps what it cannot parse yet."""

    @property
    def pending(self) -> int:
        """Bytes kept."""

    @property
    def needed(self) -> int:
        """Bytes of the frame that the kept ones begin, as far as it is known; never above the protocol's limits."""

    def received(self, data: bytes) -> None:
        """Keep the bytes and, unless ``stream.held``, parse; stop parsing when something calls ``stream.hold``."""

    def released(self) -> None:
        """The stream is not held any more: parse what is kept."""

    def eof(self) -> None:
        """The peer has ended its side. Call ``stream.finish()`` when nothing is outstanding."""

    def resume_output(self) -> None:
        """``stream.writable`` is true again."""

    def broken(self, reason: str) -> None:
        """Nothing can be sent any more: withdraw waiters and subscriptions. Not called after ``finish``."""


class Host(Protocol):
    """Who owns the socket of a peer."""

    def wants_flush(self, peer: QuicPeer) -> None:
        """Call ``peer.flush()`` in this turn of the loop or the next."""

    def send(self, peer: QuicPeer, datagrams: list[Datagram]) -> None:
        """Send datagrams of a peer."""

    def connection_id_issued(self, peer: QuicPeer, connection_id: bytes) -> None:
        """Datagrams with it are the peer's."""

    def connection_id_retired(self, peer: QuicPeer, connection_id: bytes) -> None:
        """They are not any more."""

    def ended(self, peer: QuicPeer) -> None:
        """The connection is gone, with everything that belongs to it."""


class PeerHandler(Protocol):
    """A protocol's half of a connection."""

    def connected(self, alpn: str | None) -> None:
        """The handshake is complete."""

    def opened(self, stream: QuicStream) -> StreamSession:
        """The peer has opened a stream; its first bytes follow."""

    def gone(self, code: int, reason: str) -> None:
        """The connection is gone (code and reason of who closed it)."""


class _Over:
    """Stands in for the session of a stream, and for the handler of a connection, that are over."""

    pending = 0
    needed = 1

    def connected(self, alpn: str | None) -> None:
        return

    def opened(self, stream: QuicStream) -> StreamSession:
        return self

    def gone(self, code: int, reason: str) -> None:
        return

    def received(self, data: bytes) -> None:
        return

    def released(self) -> None:
        return

    def eof(self) -> None:
        return

    def resume_output(self) -> None:
        return

    def broken(self, reason: str) -> None:
        return


OVER: Final = _Over()


class Bounds:
    """The bounds and counters that the streams of a connection answer to."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pressure: PublishPressure, budget: ReceiveBudget, counters: Counters
    ) -> None:
        self.loop = loop
        self.pressure = pressure
        self.budget = budget
        self.counters = counters


class QuicStream:
    """One bidirectional stream.

    Attributes:
        held: the session does not parse (see ``hold``).
        closed: nothing can be written any more.
        received_at: monotonic seconds of the latest bytes.
        charged, retained, reserved: see ``netserver.shell.input_pressure``.
    """

    session: StreamSession

    def __init__(self, peer: QuicPeer, stream_id: int) -> None:
        self.peer = peer
        self.id = stream_id
        self.loop = peer.loop
        self.counters = peer.bounds.counters
        self.closed = False
        self.received_at = 0.0
        self.charged = 0
        self.retained = 0
        self.reserved = 0
        self.delivered_bytes = 0
        self.window_end = STREAM_WINDOW_BYTES
        self.queued_bytes = 0
        self.written_bytes = 0
        self.incoming: list[bytes] = []
        self.incoming_eof = False
        self.brakes: Brakes | None = None
        self.is_queued = False
        self._holds: dict[str, float] = {}
        self._resuming = False
        self._input_ended = False
        self._held_bytes = 0
        self._ending = False
        self._output: deque[Bytes] = deque()
        self._barrier: tuple[int, float, Callable[[], None], asyncio.TimerHandle] | None = None
        self._progress_at = 0.0
        self._progress_bytes = -1
        peer.bounds.pressure.join(self)

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{self.counters.name} {self.peer.address} stream {self.id}"

    @property
    def maker(self) -> str:
        """Whose share of the room for topics it uses."""
        return self.visitor.maker or maker_of(self.counters.name, self.peer.address)

    @property
    def visitor(self) -> Visitor:
        """Whose stream it is, and what they may do."""
        visitor = self.peer.visitor
        assert visitor is not None, "only servers ask, and only of who is connected"
        return visitor

    # --- for sessions

    @property
    def held(self) -> bool:
        """The session does not parse for some reason."""
        return bool(self._holds)

    @property
    def writable(self) -> bool:
        """Output is short; after it was false ``session.resume_output()`` is called.

        A stream of which nothing waits is writable whatever waits on others: who reads it may never read those.
        """
        if self.brakes is not None and self.brakes.output.is_on:
            return False
        size = self.queued_bytes
        if not size or (size < OUTPUT_HIGH_BYTES and self.peer.queued_bytes < PEER_OUTPUT_BYTES):
            return True
        self.peer.waiting_output.add(self)
        return False

    def write(self, data: Bytes) -> None:
        """Send ``data``, which must never be changed afterwards; ignored once the stream is closed or ending."""
        if self.closed or self._ending or not data:
            return
        if self.peer.visitor is not None and self.peer.visitor.meter is not None:
            self._paced().sent(len(data), 0)
        self._output.append(data)
        self.queued_bytes += len(data)
        self.written_bytes += len(data)
        self.peer.queued_bytes += len(data)
        self.peer.queue_output(self)

    def finish(self) -> None:
        """Send what was written, then FIN; what the peer still sends is thrown away."""
        self.end_output()
        self.stop_reading()
        if self.closed:
            self.peer.ended(self)

    def end_output(self) -> None:
        """Send what was written, then FIN; the peer's side goes on."""
        if not self.closed and not self._ending:
            self._ending = True
            self.peer.queue_output(self)

    def stop_reading(self) -> None:
        """Throw away what the peer still sends."""
        self._input_ended = True
        self._set_held_bytes(0)
        self.peer.bounds.budget.leave(self)

    def when_acknowledged(self, callback: Callable[[], None], timeout_s: float, grace_s: float = 0.0) -> None:
        """Call back once the peer has everything that was written so far, or after ``timeout_s``.

        Args:
            grace_s: so much later: QUIC acknowledges what has arrived, which the program behind it reads in its own
                time, together with what has arrived since.
        """
        timer = self.loop.call_later(timeout_s, self.barrier_passed)
        self._barrier = (self.written_bytes, grace_s, callback, timer)
        self.peer.barriers.add(self)

    def hold(self, reason: str) -> None:
        """Stop parsing, and so the peer's sending, until the same reason is released; reasons add up."""
        self._holds.setdefault(reason, time.monotonic())

    def release(self, reason: str) -> None:
        """Take back a ``hold``; after the last one the session parses what it has kept, in the next turn."""
        since = self._holds.pop(reason, None)
        if since is None:
            return
        self.counters.backpressure_s += time.monotonic() - since
        if not self._holds and not self._resuming and not self._input_ended:
            self._resuming = True
            self.loop.call_soon(self._resume)

    def charge(self, size_bytes: int, records: int = 0) -> None:
        """``size_bytes`` of publishes were appended; each charge needs its ``discharge``."""
        self.peer.bounds.pressure.charge(self, size_bytes)
        if records:
            self.received(size_bytes, records)

    def begin(self) -> None:
        """A peer has opened it: it waits as long as the peer's identity has to."""
        if self.peer.visitor is not None and self.peer.visitor.meter is not None:
            self._paced().begin()

    def received(self, size_bytes: int, records: int) -> None:
        """So much was published, or will be by a transaction."""
        if self.peer.visitor is not None and self.peer.visitor.meter is not None:
            self._paced().received(size_bytes, records)

    def delivered(self, records: int) -> None:
        """So many records are in what was written."""
        if self.peer.visitor is not None and self.peer.visitor.meter is not None:
            self._paced().sent(0, records)

    def stop_output(self) -> None:
        """See ``netserver.shell.pacing.Paced``: ``writable`` says it."""

    def resume_output(self) -> None:
        """See ``netserver.shell.pacing.Paced``."""
        if not self.closed and self.writable:
            self.call(self.session.resume_output)

    def _paced(self) -> Brakes:
        if self.brakes is None:
            self.brakes = Brakes(self)
        return self.brakes

    def discharge(self, size_bytes: int) -> None:
        """They were stored or refused."""
        self.peer.bounds.pressure.discharge(self, size_bytes)

    def call(self, function: Callable[Args, object], *args: Args.args, **kwargs: Args.kwargs) -> None:
        """Call a session's function so that its error ends this stream and nothing else."""
        try:
            function(*args, **kwargs)
        except Exception:
            log.exception("%s: error in the session; stream ended", self.title)
            self.counters.session_errors += 1
            self._break("error in the session")
            self.closed = False
            self.finish()

    def guarded(self, function: Callable[[], object]) -> Callable[[], None]:
        """``function`` wrapped in ``call``: for callbacks given to the engine and for timers."""

        def run() -> None:
            if not self.closed and not self._ending:
                self.call(function)

        return run

    # --- receiving

    def deliver(self) -> None:
        """Give the session what came in this turn."""
        data = self.incoming[0] if len(self.incoming) == 1 else b"".join(self.incoming)
        self.incoming.clear()
        eof, self.incoming_eof = self.incoming_eof, False
        self.delivered_bytes += len(data)
        if self._input_ended:
            return
        self.received_at = time.monotonic()
        if data:
            self.call(self.session.received, data)
        if eof and not self._input_ended:
            self.call(self.session.eof)
            if self.closed:  # both sides have ended
                self.stop_reading()
                self.peer.ended(self)
                return
        self._move_window()

    def reset(self) -> None:
        """The peer has broken off its side: what it was sending never becomes whole."""
        self._input_ended = True
        self._break("the client has reset the stream")
        self.closed = False  # our side can still be ended in order
        self.finish()

    def refused(self) -> None:
        """The peer reads no more of this stream."""
        if self.peer.quic.configuration.is_client:
            self._drop_output()
            self.closed = True
        else:
            self._break("the client reads the stream no more")

    def _break(self, reason: str) -> None:
        """Nothing more is written."""
        if self.closed or self._ending:
            self.closed = True
            return
        self.closed = True
        self._drop_output()
        try:
            self.session.broken(reason)
        except Exception:
            log.exception("%s: error while a session ended", self.title)

    def gone(self) -> None:
        """The connection, or this stream as a whole, is over."""
        if not self._ending:
            self._break(self.peer.end_reason)
        self.closed = True
        self.stop_reading()
        self._drop_output()
        if self.brakes is not None:
            self.brakes.end()
        self.peer.bounds.pressure.leave(self)
        if self._barrier is not None:
            self._barrier[3].cancel()
            self._barrier = None
            self.peer.barriers.discard(self)
        self.session = OVER  # it holds this stream

    def _resume(self) -> None:
        self._resuming = False
        if not self._holds and not self._input_ended and not self.closed:
            self.call(self.session.released)
            self._move_window()
        self.peer.move_window()

    def _move_window(self) -> None:
        """Let the peer send what the session can take now."""
        if self._input_ended:
            return
        pending = self.session.pending
        budget = self.peer.bounds.budget
        if self._holds:
            self._set_held_bytes(pending)
            budget.keep(self, pending if pending > UNCOUNTED_BYTES else 0)
            return
        self._set_held_bytes(0)
        consumed = self.delivered_bytes - pending
        window = STREAM_WINDOW_BYTES
        needed = self.session.needed if pending else 0
        if needed > window:
            if self.reserved < needed and not budget.reserve(self, needed):
                budget.keep(self, pending)
                self.peer.open_stream_window(self, consumed + window)
                return
            window = needed
        elif self.reserved:
            budget.release(self)
        budget.keep(self, pending if pending > UNCOUNTED_BYTES and not self.reserved else 0)
        self.peer.open_stream_window(self, consumed + window)

    def grant(self) -> None:
        """The memory for the frame that is being received is reserved."""
        self._move_window()

    def check_progress(self, now: float, window_s: float, least_bytes: int) -> None:
        """End the stream when a half-sent frame gained less than ``least_bytes`` in ``window_s``."""
        if self._input_ended or self._holds or self.closed or not self.session.pending:
            self._progress_bytes = -1
        elif self._progress_bytes < 0 or self.delivered_bytes - self._progress_bytes >= least_bytes:
            self._progress_bytes = self.delivered_bytes
            self._progress_at = now
        elif now - self._progress_at >= window_s:
            log.info("%s: half-sent frame without progress for %.0f s; stream ended", self.title, window_s)
            self.counters.closed["stalled"] += 1
            self._break("no progress")
            self.closed = False
            self.finish()

    def _set_held_bytes(self, size: int) -> None:
        self.peer.held_bytes += size - self._held_bytes
        self._held_bytes = size

    # --- sending

    def feed(self, quic: BoundedQuic) -> bool:
        """Give a slice of the output to QUIC; whether more can be given at once."""
        room = quic.room(self.id)
        if room == GONE:
            self._drop_output()
            self.closed = True
            return False
        pieces: list[Bytes] = []
        size = min(room, SEND_SLICE_BYTES)
        while size > 0 and self._output:
            piece = self._output.popleft()
            if len(piece) > size:
                view = memoryview(piece)
                self._output.appendleft(view[size:])
                piece = view[:size]
            pieces.append(piece)
            size -= len(piece)
        is_last = self._ending and not self._output
        if pieces or is_last:
            data = b"".join(pieces)
            quic.send(self.id, data, is_last)
            self._took(len(data))
        if is_last:
            self.closed = True
            if self._input_ended:
                self.peer.ended(self)
        return bool(self._output) and size <= 0 < room

    @property
    def has_output(self) -> bool:
        """Something waits to be given to QUIC."""
        return bool(self._output) or (self._ending and not self.closed)

    def barrier_passed(self) -> None:
        """Call who waits in ``when_acknowledged``."""
        barrier, self._barrier = self._barrier, None
        self.peer.barriers.discard(self)
        if barrier is not None:
            barrier[3].cancel()
            self.call(barrier[2])

    def check_barrier(self, quic: BoundedQuic) -> None:
        """Look whether the peer has what was written before ``when_acknowledged``."""
        if self._barrier is None or not quic.is_acknowledged(self.id, self._barrier[0]):
            return
        _, grace_s, callback, timer = self._barrier
        if not grace_s:
            self.barrier_passed()
            return
        timer.cancel()
        self._barrier = (0, 0.0, callback, self.loop.call_later(grace_s, self.barrier_passed))
        self.peer.barriers.discard(self)

    def _took(self, size: int) -> None:
        self.queued_bytes -= size
        self.peer.queued_bytes -= size

    def _drop_output(self) -> None:
        self._output.clear()
        self._took(self.queued_bytes)

"""One TCP connection: the shell around a protocol's session.

The shell reads, hands whole read buffers to the session, writes, and keeps every bound; the session turns bytes into
engine calls and answers. Life of a connection::

    connection_made -> session = factory(connection)
    bytes           -> session.received(view, length) -> consumed; the rest comes again in front of what follows
    peer's EOF      -> session.eof()        the session closes when nothing is outstanding
    ProtocolError   -> the same: what came before it counts and is answered, nothing more is read
    other error     -> traceback in the log, this connection is aborted, nobody else notices
    SIGTERM         -> no more reading, session.drain()
    gone            -> session.closed(), once, whatever happened

Reading: all connections of a loop share one read buffer (asyncio and uvloop call ``get_buffer``, recv and
``buffer_updated`` back to back); a rest that was not consumed is kept per connection and copied to the front at the
next read. A frame that does not fit gets a buffer of its own, which doubles as bytes arrive; what the frame announces
is reserved in a budget, but not allocated.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, Final, ParamSpec, cast

from netserver.errors import ProtocolError
from netserver.limits import (
    FLUSH_S,
    FRAME_HEAD_BYTES,
    LINGER_S,
    MAPPED_BUFFER_MIN_BYTES,
    OWN_BUFFER_MIN_BYTES,
    UNCOUNTED_BYTES,
)
from netserver.shell.admission import admit, rights_changed
from netserver.shell.input_pressure import RECEIVE
from netserver.shell.makers import maker_of
from netserver.shell.output_bound import OUTPUT, OutputBound
from netserver.shell.quick_ack import QuickAck
from netserver.shell.receiving import Receiving
from netserver.shell.services import GONE, Services, Session, SessionFactory, Shell
from netserver.shell.tls import certificate_names

__all__ = ["Connection", "ProtocolError", "Services", "Session", "SessionFactory", "Shell"]

log = logging.getLogger(__name__)
Args = ParamSpec("Args")

DRAIN: Final = "drain"
ANSWERING: Final = "a request is being answered"
"""And nothing behind it is wanted before: also one that waits for records, so it is nobody's being slow."""
TURN: Final = "others have their turn"


class Connection(OutputBound, Receiving, asyncio.BufferedProtocol):
    """One accepted TCP connection. Everything here runs in the event loop's thread.

    Attributes:
        peer: ``host:port`` of the other end.
        writable: output is below the high-water mark; after it was false ``session.resume_output()`` is called.
        closed: the connection is closing or gone; writes are ignored.
        on_narrowed: set by a session that itself ends what its client may no longer do.
        received_at: monotonic seconds of the latest read.
        charged: publish bytes that are not yet on disk (see ``netserver.shell.input_pressure``).
        retained, reserved: bytes of receive memory that are counted in the budget.
    """

    def __init__(
        self, services: Services, factory: SessionFactory, on_lost: Callable[[Connection], None] | None = None
    ) -> None:
        shell = services.shell
        super().__init__(services.counters, shell.turns, shell.pressure, shell.budget, shell.view)
        self.services = services
        self.shell = shell
        self.loop = services.loop
        self.opened_at = time.time()
        self.number = 0
        self.on_narrowed: Callable[[], None] | None = None
        self._factory = factory
        self._on_lost = on_lost
        self._reading = True
        self._resuming = False
        self._peer_eof = False
        self._progress_at = 0.0
        self._progress_bytes = -1
        self._close_kind = "peer"
        self._close_timer: asyncio.TimerHandle | None = None
        self._quick_ack: QuickAck | None = None

    # --- for sessions

    @property
    def title(self) -> str:
        """Protocol and peer, for people."""
        return f"{self.counters.name} {self.peer}"

    @property
    def maker(self) -> str:
        """Whose share of the room for topics it uses."""
        return self.visitor.maker or self._maker_of_host

    @cached_property
    def _maker_of_host(self) -> str:
        return maker_of(self.counters.name, self.peer)

    @property
    def hold_reasons(self) -> list[str]:
        """Why it is not read, for people."""
        return list(self._holds)

    @property
    def receive_buffer_bytes(self) -> int:
        """Size of its own receive buffer (allocated, though not all of it need be used)."""
        return len(self._own) if self._own is not None else 0

    def hold(self, reason: str) -> None:
        """Stop reading and parsing until the same reason is released; reasons add up."""
        if reason in self._holds:
            return
        self._holds[reason] = time.monotonic()
        self._held_in_parse = self._parsing
        if self._reading and not self.closed:
            self._reading = False
            self._transport_call(self.transport.pause_reading)

    def release(self, reason: str) -> None:
        """Take back a ``hold``; after the last one the unparsed rest is parsed (in the next turn), then reading."""
        since = self._holds.pop(reason, None)
        if since is None:
            return
        if reason not in (OUTPUT, DRAIN, ANSWERING):
            self.counters.backpressure_s += time.monotonic() - since
        if not self._holds and not self._parsing:
            self._resume_soon()

    def has_turn(self) -> bool:
        """Whether this turn of the loop has time for another piece of work, such as a frame that is none of a run.

        False: the connection is held, and what is left is parsed in a later turn.
        """
        slices = self.services.log.slices
        if not slices.is_over():
            return True
        if TURN not in self._holds:
            self.hold(TURN)
            slices.later(self._take_turn)
        return False

    def in_slices(self, steps: Iterator[object]) -> None:
        """Go through ``steps``, now and in turns of the loop that have time, as long as the connection is there.

        Each step is short; an error in one ends this connection and no other.
        """
        if not self.closed:
            self.call(self._slice, steps)

    def _slice(self, steps: Iterator[object]) -> None:
        slices = self.services.log.slices
        for _ in steps:
            if slices.is_over():
                slices.later(partial(self.in_slices, steps))
                return

    def guarded(self, function: Callable[[], object]) -> Callable[[], None]:
        """``function`` wrapped in ``call``: for callbacks given to the engine and for timers."""
        return partial(self._unless_closed, function)

    def _unless_closed(self, function: Callable[[], object]) -> None:
        if not self.closed:
            self.call(function)

    def close(self, reason: str = "", kind: str = "server") -> None:
        """Send what was written, then close. Input that still comes is thrown away.

        Args:
            reason: for the log.
            kind: fixed word for the metric.
        """
        if self.closed:
            return
        self.closed = True
        if self._close_kind == "peer" and not self._peer_eof:
            self._close_kind = kind
        if reason:
            log.info("%s %s: closed: %s", self.counters.name, self.peer, reason)
        self._drop_input()
        try:
            if self._peer_eof or not self.transport.can_write_eof():
                self.transport.close()
                if not self.output_bytes() and self.transport.get_extra_info("sslcontext") is None:
                    return  # nothing is left to wait for: `connection_lost` is next
            else:
                self.transport.write_eof()
                if not self._reading:
                    self._reading = True
                    self.transport.resume_reading()
        except RuntimeError:  # already failed: connection_lost is on its way
            return
        except OSError:  # the peer has reset it, and nobody may be reading
            self._transport_call(self.transport.abort)
            return
        self._close_timer = self.loop.call_later(LINGER_S, self._linger, self.loop.time() + FLUSH_S)

    def end_output(self) -> None:
        """Send what was written, then FIN; input is read and parsed as before, further writes are ignored.

        For protocols in which the peer closes first. Where there is no half-closed state (TLS) it is ``close()``.
        """
        if self.closed or self._output_ended:
            return
        if self._peer_eof or not self.transport.can_write_eof():
            self.close()
            return
        self._output_ended = True
        try:
            self.transport.write_eof()
        except RuntimeError:  # already failed: connection_lost is on its way
            return
        except OSError:  # the peer has reset it, and nobody may be reading
            self._transport_call(self.transport.abort)

    def abort(self, reason: str = "", kind: str = "server") -> None:
        """Close at once; output that was not sent is lost."""
        if not self.closed:
            self.closed = True
            self._close_kind = kind
            if reason:
                log.info("%s %s: aborted: %s", self.counters.name, self.peer, reason)
        self._drop_input()
        self._transport_call(self.transport.abort)

    # --- for the server

    def drain(self) -> None:
        """Read no more; the session finishes and closes."""
        if self.closed:
            return
        self._input_ended = True
        self._close_kind = "drain"
        self.hold(DRAIN)
        self._drop_input()
        self.call(self.session.drain)

    def end_session(self) -> None:
        """The session is over before the connection is gone: what was written still goes out, the log is not needed."""
        session, self.session = self.session, GONE
        self.call(session.closed)

    def check_progress(self, now: float, window_s: float, least_bytes: int) -> None:
        """Abort when a half-sent frame gained less than ``least_bytes`` in ``window_s``."""
        waiting = (self._own is not None or self._rest) and not self._holds and not self.closed
        if not waiting:
            self._progress_bytes = -1
        elif self._progress_bytes < 0 or self.bytes_in - self._progress_bytes >= least_bytes:
            self._progress_bytes = self.bytes_in
            self._progress_at = now
        elif now - self._progress_at >= window_s:
            self.abort(f"half-sent frame without progress for {now - self._progress_at:.0f} s", "stalled")

    def confirm(self) -> None:
        """Have the kernel confirm at once what has arrived, where it would wait for an answer to send along."""
        if not self.closed:
            if self._quick_ack is None:
                self._quick_ack = QuickAck(self.transport)
            self._quick_ack()

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self.shell.serial += 1
        self.number = self.shell.serial
        self.shell.connections.add(self)
        self.counters.connections += 1
        self.counters.connections_total += 1
        self.bound_output()
        names = certificate_names(transport.get_extra_info("peercert"))
        self.visitor = self.services.door.visit(self.peer, names, partial(rights_changed, self))
        try:
            self.session = self._factory(self)
        except Exception:
            log.exception("%s %s: the session could not be made", self.counters.name, self.peer)
            self.session = GONE
            self._session_failed()
            return
        self.shell.pressure.join(self)
        admit(self)

    def eof_received(self) -> bool:
        self.shell.turns.mark(self)
        self._peer_eof = True
        if self.closed:
            return False
        self._drop_input()
        self.call(self.session.eof)
        return not self.closed and self.transport.get_extra_info("sslcontext") is None

    def resume_writing(self) -> None:
        self.shell.turns.mark(self)
        super().resume_writing()

    def writable_again(self) -> None:
        """See ``netserver.shell.output_bound``."""
        self.call(self.session.resume_output)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shell.turns.mark(self)
        self.closed = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._drop_input()
        shell = self.shell
        shell.connections.discard(self)
        shell.budget.leave(self)
        shell.pressure.leave(self)
        self.visitor.leave()
        self.let_go()
        self.counters.connections -= 1
        self.counters.closed[self._close_kind] += 1
        self.call(self.session.closed)
        if self._on_lost is not None:
            self._on_lost(self)
            self._on_lost = None
        self._quick_ack = None
        self.session, self.on_narrowed = GONE, None  # which breaks circles: see `netserver.shell.collection`

    # --- inside

    def _keep(self, view: memoryview, consumed: int, length: int) -> None:
        """Keep ``view[consumed:length]`` for the next read."""
        if self._own is not None and not consumed:
            if self._own_length == len(self._own) and not self._holds:
                self._enlarge(self._own_length)
            return
        rest = length - consumed
        self._rest = bytes(view[consumed:length])
        self._own = None
        budget = self.shell.budget
        budget.keep(self, rest if rest > UNCOUNTED_BYTES else 0)
        budget.release(self)
        if rest >= OWN_BUFFER_MIN_BYTES and not self._holds:
            self._enlarge(rest)

    def _enlarge(self, have_bytes: int) -> None:
        """Get a buffer of twice the size, with room reserved for the whole frame; without room wait unread."""
        bound = self.session.frame_bytes_max + FRAME_HEAD_BYTES
        if have_bytes >= bound:
            self._refuse(ProtocolError(f"frame above {self.session.frame_bytes_max} bytes", "frame_size"))
            return
        need = bound if self._expected <= have_bytes else min(self._expected, bound)
        if need <= self.reserved or self.shell.budget.reserve(self, need):
            self._move()
        else:
            self.hold(RECEIVE)

    def grant(self) -> None:
        """The receive budget has room now for the frame."""
        self._move()
        self.release(RECEIVE)

    def _move(self) -> None:
        """Put what is kept into a new buffer of its own, twice as large but not beyond what is reserved.

        A large one has its last size at once, of pages that take memory when bytes arrive in them: nothing is copied
        again.
        """
        kept = self._rest if self._own is None else self._own[: self._own_length]
        self._own_length = len(kept)
        if len(kept) < MAPPED_BUFFER_MIN_BYTES:
            self._own = memoryview(bytearray(min(2 * len(kept), self.reserved)))
        else:
            self._own = memoryview(mmap.mmap(-1, self.reserved))
        self._own[: self._own_length] = kept
        self._rest = b""
        self.shell.budget.keep(self, 0)

    def _drop_input(self) -> None:
        self._rest = b""
        self._own = None
        self.shell.budget.leave(self)

    def _let_others_read(self) -> None:
        """Read on in the next turn of the loop."""
        self._reads_in_a_row = 0
        if self._reading and not self.closed:
            self._reading = False
            self._transport_call(self.transport.pause_reading)
            self._resume_soon()

    def _resume_soon(self) -> None:
        if not self._resuming:
            self._resuming = True
            self.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Parse the kept rest, then read on, unless something stops it again."""
        self._resuming = False
        if not self.writable:
            self.hold_when_full()  # what was read before may have been answered since
        if self._holds or self.closed or self._input_ended:
            return
        if self._own is not None:
            self._parse(self._own, self._own_length)
        elif self._rest:
            self._parse(memoryview(self._rest), len(self._rest))  # may be larger than the shared buffer
        if not (self._holds or self._resuming or self._reading or self.closed or self._input_ended or self._peer_eof):
            self._reading = True
            self._transport_call(self.transport.resume_reading)

    def _take_turn(self) -> None:
        """There is time again."""
        del self._holds[TURN]
        self._resume()

    def _refuse(self, error: ProtocolError) -> None:
        """Bad input: nothing more is parsed, what came before is answered, then the session closes."""
        if self.closed or self._input_ended:
            return
        self.counters.protocol_errors[error.kind] += 1
        log.warning("%s %s: %s; connection closed", self.counters.name, self.peer, error)
        self._input_ended = True
        self._close_kind = "protocol"
        self.hold("protocol error")
        self._drop_input()
        self.call(self.session.eof)

    def _session_failed(self) -> None:
        self.counters.session_errors += 1
        self.abort(kind="error")

    def _linger(self, deadline: float) -> None:
        """The peer has not closed its side: give it up, or wait while it still takes output."""
        left_s = deadline - self.loop.time()
        if self.output_bytes() and left_s > 0:
            self._close_timer = self.loop.call_later(min(LINGER_S, left_s), self._linger, deadline)
        else:
            self._transport_call(self.transport.abort)

    @staticmethod
    def _transport_call(function: Callable[[], Any]) -> None:
        """Call a method of the transport that may have failed already."""
        try:
            function()
        except RuntimeError:  # connection_lost is on its way
            return

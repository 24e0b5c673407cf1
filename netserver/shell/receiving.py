# cython: annotation_typing=False
"""The way of bytes into a session and out of it: what a TCP connection does with each read and each write.

Compiled where there is a compiler: with many small publishers there is a read and a write for each record. What is
rare, and what keeps the bounds, is in `netserver.shell.connection`, which is derived from this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from netserver.errors import ProtocolError
from netserver.limits import DISCARD_BYTES, READ_BUFFER_BYTES, READ_SMALL_BYTES, READS_IN_A_ROW_MAX
from netserver.shell.session import GONE, Session

if TYPE_CHECKING:
    from netserver.access.access import Visitor
    from netserver.shell.counters import Counters
    from netserver.shell.input_pressure import PublishPressure, ReceiveBudget
    from netserver.shell.pacing import Brakes
    from netserver.shell.turns import Turns

log = logging.getLogger(__name__)


class Receiving:
    """See ``netserver.shell.connection.Connection``, whose attributes these are."""

    def __init__(
        self, counters: Counters, turns: Turns, pressure: PublishPressure, budget: ReceiveBudget, view: memoryview
    ) -> None:
        self.counters = counters
        self.session: Session = GONE
        self.transport = cast(asyncio.Transport, None)  # until connection_made
        self.visitor = cast("Visitor", None)
        self.peer = "?"
        self.writable = True
        self.closed = False
        self.charged = 0
        self.retained = 0
        self.reserved = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.received_at = 0.0
        self._turns = turns
        self._pressure = pressure
        self._budget = budget
        self._view = view  # the read buffer of all
        self._holds: dict[str, float] = {}
        self._parsing = False
        self._held_in_parse = False
        self._reads_in_a_row = 0  # large ones
        self._input_ended = False
        self._output_ended = False
        self._rest: bytes = b""
        self._own: memoryview | None = None
        self._own_length = 0
        self._expected = 0
        self._discarded_bytes = 0

    # --- for sessions

    @property
    def held(self) -> bool:
        """Reading and parsing are stopped for some reason; a session's loop may stop early on it."""
        return bool(self._holds)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``, which must never be changed afterwards; ignored once the connection is closed."""
        if self.closed or self._output_ended:
            return
        self.bytes_out += len(data)
        if self.visitor.meter is not None:
            self.paced().sent(len(data), 0)
        try:
            self.transport.write(data)
        except RuntimeError:  # uvloop: the transport failed and connection_lost is on its way
            self.abort("write on a lost connection", "peer")

    def charge(self, size_bytes: int, records: int = 0) -> None:
        """``size_bytes`` of publishes were appended; reading stops above this connection's share.

        Each charge needs its ``discharge``, also when the connection is gone by then: the bytes are in memory until
        they are stored, and a peer must not get rid of its bound by connecting again. ``Outstanding`` does both.
        """
        self._pressure.charge(self, size_bytes)
        if records and self.visitor.meter is not None:
            self.paced().received(size_bytes, records)

    def discharge(self, size_bytes: int) -> None:
        """They were stored or refused."""
        self._pressure.discharge(self, size_bytes)

    def expect(self, size_bytes: int) -> None:
        """Say in ``received`` how long the frame is, head included, that the bytes left over begin.

        It gets memory before larger ones when memory is short; unsaid, it counts as the largest frame allowed.
        """
        self._expected = size_bytes

    def call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a session's function so that its error ends this connection and no other."""
        try:
            function(*args, **kwargs)
        except ProtocolError as error:
            self._refuse(error)
        except Exception:
            log.exception("%s %s: error in the session; connection aborted", self.counters.name, self.peer)
            self._session_failed()

    # --- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._own is not None:
            return self._own[self._own_length :]
        view = self._view
        start = len(self._rest)
        if start:
            view[:start] = self._rest
        if self._pressure.tight or self._budget.tight:
            return view[start : start + READ_SMALL_BYTES]
        return view[start:] if start else view

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        self._turns.mark(self)
        self.bytes_in += nbytes
        if self.closed or self._input_ended:
            self._discarded_bytes += nbytes
            if self._discarded_bytes > DISCARD_BYTES:
                self._transport_call(self.transport.abort)
            return
        self.received_at = time.monotonic()
        if self._own is None:
            self._parse(self._view, len(self._rest) + nbytes)
        else:
            self._own_length += nbytes
            self._parse(self._own, self._own_length)
        if not self.writable:
            self.hold_when_full()
        if nbytes < READ_BUFFER_BYTES // 2:
            self._reads_in_a_row = 0
        else:
            self._reads_in_a_row += 1
            if self._reads_in_a_row >= READS_IN_A_ROW_MAX:
                self._let_others_read()

    def _parse(self, view: memoryview, length: int) -> None:
        """Give ``view[:length]`` to the session and keep what it leaves."""
        self._parsing = True
        self._held_in_parse = False
        self._expected = 0
        try:
            consumed = self.session.received(view, length)
            assert 0 <= consumed <= length, f"session consumed {consumed} of {length} bytes"
        except ProtocolError as error:
            self._refuse(error)
            return
        except Exception:
            log.exception("%s %s: error in the session; connection aborted", self.counters.name, self.peer)
            self._session_failed()
            return
        finally:
            self._parsing = False
        if self.closed or self._input_ended:
            return
        if consumed == length:
            if self.retained or self.reserved:
                self._budget.leave(self)
            self._rest = b""
            self._own = None
        else:
            self._keep(view, consumed, length)
        if self._held_in_parse and not self._holds:
            self._resume_soon()

    # --- what a connection has besides

    def abort(self, reason: str = "", kind: str = "server") -> None:
        """See ``Connection``."""
        raise NotImplementedError

    def hold(self, reason: str) -> None:
        """See ``Connection``."""
        raise NotImplementedError

    def release(self, reason: str) -> None:
        """See ``Connection``."""
        raise NotImplementedError

    def hold_when_full(self) -> None:
        """See ``netserver.shell.output_bound``."""
        raise NotImplementedError

    def paced(self) -> Brakes:
        """See ``netserver.shell.pacing``."""
        raise NotImplementedError

    def grant(self) -> None:
        """See ``Connection``."""
        raise NotImplementedError

    def check_progress(self, now: float, window_s: float, least_bytes: int) -> None:
        """See ``Connection``."""
        raise NotImplementedError

    def _keep(self, view: memoryview, consumed: int, length: int) -> None:
        raise NotImplementedError

    def _let_others_read(self) -> None:
        raise NotImplementedError

    def _resume_soon(self) -> None:
        raise NotImplementedError

    def _refuse(self, error: ProtocolError) -> None:
        raise NotImplementedError

    def _session_failed(self) -> None:
        raise NotImplementedError

    def _transport_call(self, function: Callable[[], Any]) -> None:
        raise NotImplementedError

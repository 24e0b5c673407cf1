"""The bound on what a connection has waiting to be sent.

Above the high-water mark its session writes nothing more by itself (``writable``); well above it nothing is read any
more, since what is read has answers. Both end when the peer has taken enough of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from netserver.limits import OUTPUT_HIGH_BYTES, OUTPUT_STOP_BYTES
from netserver.shell.pacing import Pacing

OUTPUT: Final = "output"


class OutputBound(Pacing):
    """The part of a TCP connection that keeps to it."""

    transport: asyncio.Transport
    _is_full = False

    def writable_again(self) -> None:
        """The session may go on to write."""
        raise NotImplementedError

    def bound_output(self) -> None:
        """Have the transport say when the high-water mark is passed."""
        self.transport.set_write_buffer_limits(OUTPUT_HIGH_BYTES)

    def hold_when_full(self) -> None:
        """Read no more while far too much waits to be sent."""
        if self.output_bytes() > OUTPUT_STOP_BYTES:
            self.hold(OUTPUT)

    def pause_writing(self) -> None:
        """Called by the transport above the high-water mark."""
        self._is_full = True
        self.writable = False

    def resume_writing(self) -> None:
        """Called by the transport when the peer has taken enough."""
        self._is_full = False
        self.resume_output()

    def resume_output(self) -> None:
        """See ``netserver.shell.pacing.Paced``."""
        if self._is_full or (self.brakes is not None and self.brakes.output.is_on):
            return
        self.writable = True
        self.release(OUTPUT)
        if not self.closed:
            self.writable_again()

    def output_bytes(self) -> int:
        """What waits to be sent."""
        try:
            return self.transport.get_write_buffer_size()
        except RuntimeError:  # the transport failed; connection_lost is on its way
            return 0

"""What a protocol puts into a connection: its session, and what stands in for one."""

from __future__ import annotations

from typing import Final, Protocol


class Session(Protocol):
    """A protocol's half of a connection; made by ``factory(connection)``."""

    frame_bytes_max: int

    def received(self, data: memoryview, length: int) -> int:
        """Parse ``data[0:length]``; return the bytes consumed.

        The view is valid during the call only. After ``connection.hold()`` return early: the rest comes again on
        ``release``. A frame whose announced length is above the limit raises at once.

        Raises:
            ProtocolError: the bytes are not the protocol's; everything before them must already be appended and its
                answers registered. Afterwards ``eof()`` is called and nothing more is parsed.
        """

    def eof(self) -> None:
        """No more input. Call ``connection.close()`` when nothing is outstanding (now, or at the last answer)."""

    def resume_output(self) -> None:
        """``connection.writable`` is true again."""

    def closed(self) -> None:
        """The connection is gone: withdraw waiters and subscriptions."""

    def idle(self) -> bool:
        """Nothing is outstanding."""

    def drain(self) -> None:
        """The server stops: finish what is outstanding, then ``connection.close()``. Nothing more is read."""


class NoSession:
    """Stands in when the factory failed, and when the transport is gone."""

    frame_bytes_max = 0

    def received(self, data: memoryview, length: int) -> int:
        return length

    def eof(self) -> None:
        return

    def resume_output(self) -> None:
        return

    def closed(self) -> None:
        return

    def idle(self) -> bool:
        return True

    def drain(self) -> None:
        return


GONE: Final = NoSession()

"""One stream of a Fujin client: commands to the writer or reader that it connects as, and how streams end.

A stream's first command says what it is. Every stream that was connected ends with DISCONNECT and FIN, whether the
client asked for it, ended its side, or sent something that is not allowed (the answer to that first); the connection
and its other streams live on. Streams are never reset: the Go client's read loops spin on that.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from netserver.fujin import codec
from netserver.fujin.codec import Command, ConnectReader, ConnectWriter, Decoder, Disconnect, FujinError
from netserver.fujin.limits import ACKNOWLEDGED_S, COMMANDS_TURN_MAX, READ_GRACE_S
from netserver.fujin.reader import Reader
from netserver.fujin.writer import STOPPING, Writer

if TYPE_CHECKING:
    from netserver.fujin.listener_state import ListenerState
    from netserver.quic.stream import QuicStream

log = logging.getLogger(__name__)

OUTPUT: Final = "the client does not read its answers"
TURN: Final = "others have their turn"


class Role(Protocol):
    """What a stream is: a writer or a reader."""

    def run(self, decoder: Decoder) -> None:
        """Take whole runs of commands out of the decoder's buffer, where that is faster."""

    def handle(self, command: Command) -> bool:
        """Carry out a command. False: not now; the stream is held, and the command comes again after that."""

    def end(self, last: bytes) -> None:
        """Answer what is outstanding, then send ``last`` and finish the stream."""

    def stop(self) -> None:
        """The server is about to stop: tell the client, as soon as that disturbs no answer."""

    def broken(self) -> None:
        """Nothing can be sent any more."""


class FujinStream:
    """See the module, and ``netserver.quic.peer.StreamSession`` for the methods that the stream calls."""

    def __init__(self, shared: ListenerState, stream: QuicStream, *, is_stopping: bool = False) -> None:
        self._is_stopping = is_stopping  # the role is told as soon as there is one
        self._shared = shared
        self._stream = stream
        self._decoder = Decoder(shared.options)
        self._role: Role | None = None
        self._kept: Command | None = None
        self._has_input = False
        self._eof = False
        self._ended = False

    # --- netserver.quic.peer.StreamSession

    @property
    def pending(self) -> int:
        return self._decoder.pending

    @property
    def needed(self) -> int:
        return self._decoder.needed

    def received(self, data: bytes) -> None:
        self._has_input = True
        self._decoder.feed(data)
        self._parse()

    def released(self) -> None:
        self._parse()

    def eof(self) -> None:
        self._eof = True
        self._stream.release(STOPPING)  # who ends its side waits for nothing but the end
        self._parse()

    def resume_output(self) -> None:
        self._stream.release(OUTPUT)
        if isinstance(self._role, Reader):
            self._role.resume_output()

    def broken(self, reason: str) -> None:
        self._ended = True
        if self._role is not None:
            self._role.broken()

    # --- for the listener

    def stop(self) -> None:
        """The server is about to stop."""
        self._is_stopping = True
        if self._role is not None and not self._ended:
            self._role.stop()

    def end(self) -> None:
        """The server stops: carry out what has come, and end the stream, whatever the client does."""
        self._stream.release(STOPPING)
        self._parse()
        self._end()

    # --- inside

    def _parse(self) -> None:
        stream, decoder = self._stream, self._decoder
        left, slices = COMMANDS_TURN_MAX, self._shared.log.slices
        try:
            while not stream.held and not self._ended:
                if not stream.writable:
                    stream.hold(OUTPUT)
                    return
                if not left or slices.is_over():
                    stream.hold(TURN)
                    slices.later(partial(stream.release, TURN))
                    return
                left -= 1
                command = self._kept
                self._kept = None
                if command is None:
                    if self._role is not None:
                        self._role.run(decoder)
                        if stream.held:
                            return
                    command = decoder.next()
                    if command is None:
                        if self._eof:
                            self._end()
                        return
                self._handle(command)
        except FujinError as error:
            self._refuse(error)

    def _handle(self, command: Command) -> None:
        if isinstance(command, Disconnect):
            self._finish(codec.DISCONNECT)
        elif isinstance(command, ConnectWriter | ConnectReader):
            make = Writer if isinstance(command, ConnectWriter) else Reader
            self._role = make(self._shared, self._stream, command)  # type: ignore[arg-type]
            if self._is_stopping:
                self._role.stop()
        else:
            assert self._role is not None, "the decoder wants CONNECT first"
            if not self._role.handle(command):
                self._kept = command

    def _refuse(self, error: FujinError) -> None:
        """Something that is not allowed: nothing more is read."""
        self._shared.counters.protocol_errors[error.kind] += 1
        log.info("%s: %s; stream ended", self._stream.title, error)
        last = error.answer if error.is_bare else error.answer + codec.DISCONNECT
        if self._role is None and error.is_bare and error.answer:
            self._ended = True
            refuse(self._stream, error.answer)
        else:
            self._finish(last)

    def _end(self) -> None:
        self._finish(codec.DISCONNECT if self._has_input else b"")

    def _finish(self, last: bytes) -> None:
        """End the stream once everything is answered; ``last`` is what is sent before FIN."""
        if self._ended:
            return
        self._ended = True
        self._kept = None
        if self._role is not None:
            self._role.end(last)
        else:
            self._stream.write(last)
            self._stream.finish()


def refuse(stream: QuicStream, answer: bytes) -> None:
    """Answer CONNECT READER with an error, then end the stream.

    FIN goes into a packet of its own: the Go client shows its user the error only if it can read it before the end.
    """
    stream.write(answer)
    stream.stop_reading()
    stream.when_acknowledged(stream.finish, ACKNOWLEDGED_S, READ_GRACE_S)

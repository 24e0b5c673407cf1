"""The server's side of a Fujin stream, as a client reads it: bytes in, answers out. Layouts: ``codec``."""

from __future__ import annotations

from typing import NamedTuple

from netserver.fujin.codec import Answer, FujinError, Reader
from netserver.fujin.limits import ANSWER_MESSAGE_BYTES_MAX, ERROR_BYTES_MAX, FETCHED_MAX


class Connected(NamedTuple):
    """Answer to CONNECT READER, or a later failure of it."""

    error: str | None


class Done(NamedTuple):
    """Answer to WRITE, BEGIN, COMMIT or ROLLBACK."""

    kind: Answer
    cid: int
    error: str | None


class Message(NamedTuple):
    """MSG; ``message_id`` is empty where the reader commits by itself."""

    message_id: bytes
    value: bytes


class Fetched(NamedTuple):
    """Answer to FETCH."""

    cid: int
    messages: list[Message]
    error: str | None = None


class Acked(NamedTuple):
    """Answer to ACK or NACK: (id, error) of each; or one error for all."""

    kind: Answer
    cid: int
    results: list[tuple[bytes, str | None]]
    error: str | None = None


class Disconnected(NamedTuple):
    """Answer to DISCONNECT, or the server ends the stream."""


class Stop(NamedTuple):
    """The server wants to stop."""


Event = Connected | Done | Message | Fetched | Acked | Disconnected | Stop


class AnswerDecoder(Reader):
    """Answers and messages on a stream that the client has opened. What comes after DISCONNECT is dropped.

    Args:
        auto: MSG and FETCH carry no ids.
        message_bytes_max: largest message.
    """

    def __init__(self, *, auto: bool = False, message_bytes_max: int = ANSWER_MESSAGE_BYTES_MAX) -> None:
        super().__init__()
        self._auto = auto
        self._message_bytes_max = message_bytes_max
        self._messages: list[Message] = []
        self._results: list[tuple[bytes, str | None]] = []

    def next(self) -> Event | None:
        """The next answer; None: it is not whole yet.

        Raises:
            FujinError: it is none.
        """
        if self.ended or not self.pending:
            return None
        try:
            return self._next(self.buffer[self.position])
        except FujinError:
            self._end()
            raise

    def _next(self, kind: int) -> Event | None:
        if kind == Answer.MSG:
            found = self._message(1)
            if found is None:
                return None
            self.consumed(self.position + found[1])
            return found[0]
        if Answer.WRITE <= kind <= Answer.ROLLBACK:
            return self._done(Answer(kind))
        if kind == Answer.FETCH:
            return self._fetched()
        if kind in (Answer.ACK, Answer.NACK):
            return self._acked(Answer(kind))
        if kind == Answer.CONNECT_READER:
            field = self._error(1)
            if field is None:
                return None
            self.consumed(self.position + field[1])
            return Connected(field[0])
        if kind == Answer.DISCONNECT:
            self._end()
            return Disconnected()
        if kind == Answer.STOP:
            self.consumed(self.position + 1)
            return Stop()
        raise FujinError(f"answer {kind:#04x} is unknown")

    def _done(self, kind: Answer) -> Event | None:
        cid = self._number(1)
        field = self._error(5)
        if field is None:
            return None
        self.consumed(self.position + field[1])
        return Done(kind, cid, field[0])

    def _fetched(self) -> Event | None:
        cid = self._number(1)
        if not self._walked:
            field = self._error(5)
            if field is None:
                return None
            if field[0] is not None:
                self.consumed(self.position + field[1])
                return Fetched(cid, [], field[0])
            self._begin_list(field[1])
        while self._left:
            found = self._message(self._walked)
            if found is None:
                return None
            self._messages.append(found[0])
            self._walked = found[1]
            self._left -= 1
        if not self._walked:
            return None
        messages, self._messages = self._messages, []
        self.consumed(self.position + self._walked)
        return Fetched(cid, messages)

    def _acked(self, kind: Answer) -> Event | None:
        cid = self._number(1)
        if not self._walked:
            field = self._error(5)
            if field is None:
                return None
            if field[0] is not None:
                self.consumed(self.position + field[1])
                return Acked(kind, cid, [], field[0])
            self._begin_list(field[1])
        while self._left:
            found = self._string(self._walked, ERROR_BYTES_MAX)
            field = self._error(found[1]) if found is not None else None
            if found is None or field is None:
                return None
            self._results.append((found[0], field[0]))
            self._walked = field[1]
            self._left -= 1
        if not self._walked:
            return None
        results, self._results = self._results, []
        self.consumed(self.position + self._walked)
        return Acked(kind, cid, results)

    def _begin_list(self, at: int) -> None:
        """The count of a list is ``at`` bytes after the position; what was gathered is kept while it is walked."""
        count = self._number(at)
        if count > FETCHED_MAX:
            raise FujinError(f"a list of {count}", "frame_size")
        if count >= 0:
            self._walked, self._left = at + 4, count

    def _string(self, at: int, size_max: int) -> tuple[bytes, int] | None:
        """(the str there, offset after it)."""
        length = self._number(at)
        if length > size_max:
            raise FujinError(f"a string of {length} bytes", "frame_size")
        if length < 0 or not self._has(at + 4 + length):
            return None
        return self._part(at + 4, at + 4 + length), at + 4 + length

    def _error(self, at: int) -> tuple[str | None, int] | None:
        """(the error there or None, offset after the field)."""
        if not self._has(at + 1):
            return None
        flag = self.buffer[self.position + at]
        if flag == 0:
            return None, at + 1
        if flag != 1:
            raise FujinError(f"error field begins with {flag:#04x}")
        found = self._string(at + 1, ERROR_BYTES_MAX)
        return (found[0].decode("utf-8", "replace"), found[1]) if found is not None else None

    def _message(self, at: int) -> tuple[Message, int] | None:
        """(the message there, with its id where it has one; offset after it)."""
        message_id = b""
        if not self._auto:
            found = self._string(at, ERROR_BYTES_MAX)
            if found is None:
                return None
            message_id, at = found
        found = self._string(at, self._message_bytes_max)
        return (Message(message_id, found[0]), found[1]) if found is not None else None

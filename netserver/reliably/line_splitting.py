"""Lines of the JSON streaming protocol in bytes as they come: each one whole, or refused for its length."""

from __future__ import annotations

from collections.abc import Iterator

from netserver.reliably.codec import RequestError, may_be_long
from netserver.reliably.limits import LINE_BYTES_MAX, LONG_LINE_BYTES_MAX

HEAD_BYTES = 256
"""What is looked at to tell whether a line may be a long one."""


class LineSplitter:
    """Finds the lines; what a line feed is still missing of is given again with what follows, and not searched again.

    Attributes:
        position: up to where the latest input was taken.
    """

    __slots__ = ("_searched", "position")

    def __init__(self) -> None:
        self.position = 0
        self._searched = 0  # of what was left of the input, so much holds no line feed

    def split(self, data: memoryview, length: int) -> Iterator[bytes]:
        """The lines of ``data[:length]``; ``position`` is after the one that was given last.

        Raises:
            RequestError: the line that begins here is too long
        """
        self.position = 0
        fresh = bytes(data[self._searched : length])
        if b"\n" not in fresh:
            if length > LINE_BYTES_MAX and (length > LONG_LINE_BYTES_MAX or not may_be_long(bytes(data[:HEAD_BYTES]))):
                self._searched = 0
                raise RequestError("Line too long", "line_size")
            self._searched = length
            return
        text = bytes(data[: self._searched]) + fresh
        self._searched = 0
        while (end := text.find(b"\n", self.position)) >= 0:
            line = text[self.position : end]
            self.position = end + 1
            yield line
        self._searched = length - self.position

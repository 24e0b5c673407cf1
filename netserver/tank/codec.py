"""The TANK protocol without I/O: bytes in, messages out, for both directions.

A frame is ``message id u8, payload size u32, payload``; the size leaves out the five bytes of this header. There are no
error frames: whoever receives something malformed closes the connection. Layouts of the payloads are in
``requests.py`` and ``responses.py``, the messages themselves in ``messages.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .errors import FormatError
from .limits import FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX
from .messages import Request, Response
from .requests import decode_request, encode_request
from .responses import decode_response, encode_response
from .wire import U32

__all__ = [
    "Decoder",
    "FormatError",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "frame_bounds",
    "request_decoder",
    "response_decoder",
]

M = TypeVar("M")


def frame_bounds(data: memoryview, position: int, end: int) -> tuple[int, int, int] | None:
    """Where the payload of the frame at ``position`` lies: (message id, start, end).

    ``end`` of the payload may be beyond ``end``: the frame is not whole yet. None: its header is not whole yet.

    Raises:
        FormatError: the announced size is above the limit.
    """
    if end - position < FRAME_HEADER_BYTES:
        return None
    size_bytes: int = U32.unpack_from(data, position + 1)[0]
    if size_bytes > FRAME_PAYLOAD_BYTES_MAX:
        raise FormatError(f"a frame of {size_bytes} bytes, at most {FRAME_PAYLOAD_BYTES_MAX} are allowed")
    start = position + FRAME_HEADER_BYTES
    return data[position], start, start + size_bytes


class Decoder(Generic[M]):
    """Cuts a stream into frames and decodes each.

    Args:
        decode: ``decode_request`` or ``decode_response``.
    """

    def __init__(self, decode: Callable[[int, memoryview], M]) -> None:
        self._decode = decode
        self._stream = memoryview(b"")
        self._position = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that is not whole yet."""
        return len(self._stream) - self._position

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that ``data`` completes; their bundles and chunks are views that stay valid.

        Raises:
            FormatError: after the messages before it; the stream cannot be decoded any further.
        """
        stream = self._stream = memoryview(bytes(self._stream[self._position :]) + data)
        self._position = 0
        while True:
            frame = frame_bounds(stream, self._position, len(stream))
            if frame is None or frame[2] > len(stream):
                return
            message_id, start, self._position = frame
            yield self._decode(message_id, stream[start : self._position])


def request_decoder() -> Decoder[Request]:
    """For the server's side of a connection."""
    return Decoder(decode_request)


def response_decoder() -> Decoder[Response]:
    """For the client's side of a connection."""
    return Decoder(decode_response)

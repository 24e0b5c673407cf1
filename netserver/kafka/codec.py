"""Frames of Kafka: bytes in, requests out, and answers as bytes. No I/O.

A frame is ``size:i32`` and so many bytes. A request begins with ``key:i16, version:i16, correlation:i32, client id:
nullable string``, an answer with the correlation id; flexible versions have tagged fields behind that, but for the
answer to ApiVersions, which everybody must be able to read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from .apis import APIS, Key, request_form, response_form
from .errors import FormatError
from .limits import PLAIN_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_HEAD_BYTES_MIN, SIZE_BYTES
from .schema import Output, Reader, Values

_SIZE: Final = Struct(">i")
_HEAD: Final = Struct(">hhi")
_CLIENT: Final = Struct(">h")
TLS_HANDSHAKE: Final = b"\x16\x03"
HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN")
"""What others begin with; as a length, each of these is far above the bound."""


class Head(NamedTuple):
    """What a request begins with.

    Attributes:
        is_spoken: its version is; of one that is not there is no body to read (only ApiVersions comes so far).
    """

    key: Key
    version: int
    correlation: int
    is_spoken: bool = True


class Request(NamedTuple):
    """A whole request.

    Attributes:
        body: see ``netserver.kafka.apis``; records are views of the frame.
    """

    head: Head
    client_id: str
    body: Values


def frame_bounds(data: memoryview, start: int, length: int) -> tuple[Head, int] | None:
    """The head of the request at ``start`` and where its frame ends (which may be behind ``length``).

    None: there is not enough of it to tell.

    Raises:
        FormatError: it is none, or too large; before more of it is waited for.
    """
    if length - start < SIZE_BYTES:
        return None
    (size,) = _SIZE.unpack_from(data, start)
    if not REQUEST_HEAD_BYTES_MIN <= size <= REQUEST_BYTES_MAX:
        raise FormatError(_stranger(bytes(data[start : start + SIZE_BYTES])) or f"a request of {size} bytes")
    if length - start < SIZE_BYTES + REQUEST_HEAD_BYTES_MIN:
        return None
    number, version, correlation = _HEAD.unpack_from(data, start + SIZE_BYTES)
    api = APIS.get(number)
    if api is None:
        raise FormatError(f"api key {number} is not spoken here")
    is_spoken = api.first <= version <= api.last
    if not is_spoken and number != Key.API_VERSIONS:
        raise FormatError(f"{api.key.name} of version {version}, spoken are {api.first} to {api.last}")
    if number != Key.PRODUCE and size > PLAIN_REQUEST_BYTES_MAX:
        raise FormatError(f"{api.key.name} of {size} bytes")
    return Head(api.key, version, correlation, is_spoken), start + SIZE_BYTES + size


def _stranger(first: bytes) -> str:
    """What else than a request begins so, and what to do then; empty: nothing that is known."""
    if first.startswith(TLS_HANDSHAKE):
        return (
            "a TLS handshake, and this listener speaks plain TCP: set [kafka] tls_certificate and tls_key, or the "
            "client's security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    return "HTTP, which is spoken at the address of [admin]" if first in HTTP_METHODS else ""


def decode_request(frame: memoryview, head: Head) -> Request:
    """The request of a whole frame, whose head is known and spoken.

    Raises:
        FormatError: it is none.
    """
    reader = Reader(frame, SIZE_BYTES + _HEAD.size)
    client_id = bytes(reader.take(max(reader.length(_CLIENT, flexible=False), 0))).decode("utf-8", "replace")
    if head.version >= APIS[head.key].flexible:
        reader.skip_tags()
    body = request_form(head.key, head.version).read(reader)
    return Request(head, client_id, body)


def encode_response(head: Head, body: Values) -> Output:
    """The frame of an answer."""
    version = head.version if head.is_spoken else 0  # the one that everybody reads
    out = Output()
    out += bytes(SIZE_BYTES)
    out += _SIZE.pack(head.correlation)
    if version >= APIS[head.key].flexible and head.key != Key.API_VERSIONS:
        out.append(0)
    response_form(head.key, version).write(out, body)
    _SIZE.pack_into(out, 0, out.size_bytes - SIZE_BYTES)
    return out


def encode_request(head: Head, client_id: str | None, body: Values) -> bytearray:
    """The frame of a request, as a client sends it."""
    out = bytearray(SIZE_BYTES)
    out += _HEAD.pack(head.key, head.version, head.correlation)
    name = (client_id or "").encode()
    out += _CLIENT.pack(-1 if client_id is None else len(name)) + name
    if head.version >= APIS[head.key].flexible:
        out.append(0)
    request_form(head.key, head.version).write(out, body)
    _SIZE.pack_into(out, 0, len(out) - SIZE_BYTES)
    return out


def decode_response(frame: memoryview, head: Head) -> Values:
    """The answer to a request, as a client reads it.

    Raises:
        FormatError: it is none.
    """
    version = head.version if head.is_spoken else 0
    reader = Reader(frame, SIZE_BYTES + _SIZE.size)
    if version >= APIS[head.key].flexible and head.key != Key.API_VERSIONS:
        reader.skip_tags()
    body = response_form(head.key, version).read(reader)
    if reader.at != reader.end:
        raise FormatError(f"{reader.end - reader.at} bytes behind the answer")
    return body

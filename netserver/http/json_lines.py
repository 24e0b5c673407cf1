"""Records as lines of JSON, both ways: what a line of a publish may say, and how a record is written.

A line to publish is an object with one of ``value`` (text), ``value_base64`` (bytes) and ``value_json`` (any JSON,
stored as it was sent), and perhaps ``key`` or ``key_base64``, ``timestamp_ms``, ``partition``, ``headers`` (a list of
``{"name", "value"}``, each also with ``_base64``). Other names are refused: a misspelled ``key`` would be lost.

A line that is read has ``partition``, ``offset``, ``timestamp_ms``, ``key`` unless there is none, ``value`` and
``headers`` unless there are none; bytes that are no UTF-8 are in ``value_base64`` and so on. A ``value`` of null (of a
record or a header) is one that Kafka's clients have published like that.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from engine.formats.record import Record
from engine.limits import KEY_BYTES_MAX
from netserver.http.errors import BadRequest
from netserver.http.limits import HTTP_HEADERS_MAX, HTTP_TIMESTAMP_MS_MAX

UNSET: Final = msgspec.UNSET
Text: TypeAlias = str | msgspec.UnsetType


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """A header of a record."""

    name: Text = UNSET
    name_base64: Text = UNSET
    value: Text = UNSET
    value_base64: Text = UNSET


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """A record to publish."""

    value: Text = UNSET
    value_base64: Text = UNSET
    value_json: msgspec.Raw | msgspec.UnsetType = UNSET
    key: Text = UNSET
    key_base64: Text = UNSET
    timestamp_ms: int | msgspec.UnsetType = UNSET
    partition: int | msgspec.UnsetType = UNSET
    headers: Annotated[list[Header], msgspec.Meta(max_length=HTTP_HEADERS_MAX)] | msgspec.UnsetType = UNSET


_LINE: Final = msgspec.json.Decoder(Line)
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Rows:
    """Records that go into one partition together; None where no record has any."""

    values: Sequence[bytes | bytearray] = field(default_factory=list)
    keys: list[bytes] | None = None
    timestamps_ms: list[int] | None = None
    headers: list[tuple[bytes, ...]] | None = None

    @property
    def size_bytes(self) -> int:
        """Of values and keys."""
        return sum(map(len, self.values)) + sum(map(len, self.keys or ()))


@dataclass(slots=True, frozen=True)
class Row:
    """A record to publish; partition -1: not named."""

    value: bytes
    key: bytes
    timestamp_ms: int
    headers: tuple[bytes, ...]
    partition: int


def read_lines(lines: Sequence[bytes], first_line: int, now_ms: int) -> list[Row]:
    """Whole lines as records; empty lines are passed over.

    Args:
        first_line: number of the first one, for messages.

    Raises:
        BadRequest: names the line.
    """
    rows = []
    decode = _LINE.decode
    for number, line in enumerate(lines, first_line):
        if not line or line.isspace():
            continue
        try:
            rows.append(_row(decode(line), now_ms))
        except (msgspec.DecodeError, BadRequest, RecursionError) as error:
            raise BadRequest(f"line {number}: {error}") from None
    return rows


def _row(line: Line, now_ms: int) -> Row:
    value = line.value
    if type(value) is str and line.value_base64 is UNSET and line.value_json is UNSET:
        stored = value.encode()
    elif line.value_json is not UNSET and value is UNSET and line.value_base64 is UNSET:
        stored = bytes(line.value_json)
    else:
        stored = _bytes("value", value, line.value_base64)
        if line.value_json is not UNSET:
            raise BadRequest("value, value_base64 and value_json exclude each other")
    key = b"" if line.key is UNSET and line.key_base64 is UNSET else _bytes("key", line.key, line.key_base64)
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"a key may have {KEY_BYTES_MAX} bytes, this one has {len(key)}")
    timestamp_ms = now_ms if isinstance(line.timestamp_ms, msgspec.UnsetType) else line.timestamp_ms
    if not 0 <= timestamp_ms <= HTTP_TIMESTAMP_MS_MAX:
        raise BadRequest(f"timestamp_ms must be in 0 to {HTTP_TIMESTAMP_MS_MAX}")
    headers: tuple[bytes, ...] = ()
    if not isinstance(line.headers, msgspec.UnsetType):
        headers = tuple(part for header in line.headers for part in _header(header))
    partition = -1
    if not isinstance(line.partition, msgspec.UnsetType):
        partition = line.partition
        if partition < 0:
            raise BadRequest("partition must be a number, 0 or more")
    return Row(stored, key, timestamp_ms, headers, partition)


def _header(header: Header) -> tuple[bytes, bytes]:
    return _bytes("name", header.name, header.name_base64), _bytes("value", header.value, header.value_base64)


def _bytes(name: str, text: Text, encoded: Text) -> bytes:
    if isinstance(encoded, str):
        if isinstance(text, str):
            raise BadRequest(f"{name} and {name}_base64 exclude each other")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"{name}_base64 is not base64") from None
    if not isinstance(text, str):
        raise BadRequest(f"{name} (or {name}_base64) is missing")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{name} has a lone surrogate; send {name}_base64") from None


def gather(rows: Iterable[Row]) -> Rows:
    """Records of one partition, as the log takes them."""
    found = list(rows)
    return Rows(
        [row.value for row in found],
        [row.key for row in found] if any(row.key for row in found) else None,
        [row.timestamp_ms for row in found],
        [row.headers for row in found] if any(row.headers for row in found) else None,
    )


class _Out(msgspec.Struct, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    key: Text = UNSET
    key_base64: Text = UNSET
    value: Text | None = UNSET
    value_base64: Text = UNSET
    headers: Any = UNSET


def line_of(partition: int, record: Record) -> bytes:
    """A record as a line of JSON, its newline included."""
    out = _Out(partition, record.seq, record.timestamp_ms)
    key = record.any_key
    if key is not None:
        try:
            out.key = key.decode()
        except UnicodeDecodeError:
            out.key_base64 = base64.b64encode(key).decode()
    try:
        out.value = None if record.is_null else record.value.decode()
    except UnicodeDecodeError:
        out.value_base64 = base64.b64encode(record.value).decode()
    if record.headers:
        out.headers = [_field("name", name) | _field("value", value) for name, value in record.header_pairs()]
    return _ENCODE(out) + b"\n"


def _field(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}

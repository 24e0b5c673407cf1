"""Input bytes to records: by lines, by zero bytes, by lengths, whole, or one JSON object a line."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Literal

from tools.logtool.lib.errors import NO_ROOM, USAGE, Failure
from tools.logtool.lib.limits import VALUE_BYTES_MAX

Framing = Literal["lines", "nul", "length", "whole", "jsonl"]
FRAMINGS: tuple[Framing, ...] = ("lines", "nul", "length", "whole", "jsonl")
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Input:
    """A record to publish."""

    value: bytes
    key: bytes = b""


class Splitter:
    """Feed it bytes in pieces of any size; records come out as soon as they are complete.

    length: each record is preceded by its length as 4 bytes, big-endian. jsonl: objects with "value" (a text) or
    "value_base64", and optionally "key" or "key_base64"; other fields are ignored, so that what `cat -o jsonl` wrote
    can be published again. A last line without its end counts.
    """

    def __init__(self, framing: Framing, key: bytes = b"", key_delimiter: bytes = b"") -> None:
        self._framing = framing
        self._key = key
        self._key_delimiter = key_delimiter
        self._rest = bytearray()
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._lines = 0

    def feed(self, data: bytes) -> list[Input]:
        """The records that `data` completes. Raises Failure: malformed, or larger than any server takes."""
        if self._framing == "length":
            self._rest += data
            return self._lengths()
        if self._framing == "whole":
            self._gather(data)
            return []
        *complete, last = data.split(b"\0" if self._framing == "nul" else b"\n")
        if not complete:
            self._gather(last)
            return []
        complete[0] = b"".join([*self._parts, complete[0]])
        self._parts = [last] if last else []
        self._parts_bytes = len(last)
        return [self._record(value) for value in complete]

    def end(self) -> list[Input]:
        """What is left at the end of one input. Raises Failure: cut short."""
        if self._framing == "length":
            if self._rest:
                raise Failure(USAGE, "input", f"the input ends within a record ({len(self._rest)} bytes are left)")
            return []
        value = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        found = [self._record(value)] if value or self._framing == "whole" else []
        self._lines = 0
        return found

    def _gather(self, data: bytes) -> None:
        self._parts_bytes += len(data)
        if self._parts_bytes > VALUE_BYTES_MAX:
            raise Failure(NO_ROOM, "too_large", f"a record of more than {VALUE_BYTES_MAX} bytes: no server takes it")
        if data:
            self._parts.append(data)

    def _lengths(self) -> list[Input]:
        found, data, at = [], self._rest, 0
        while len(data) - at >= LENGTH_BYTES:
            size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if size > VALUE_BYTES_MAX:
                raise Failure(NO_ROOM, "too_large", f"a record of {size} bytes: no server takes it")
            if len(data) - at - LENGTH_BYTES < size:
                break
            found.append(self._record(bytes(data[at + LENGTH_BYTES : at + LENGTH_BYTES + size])))
            at += LENGTH_BYTES + size
        del data[:at]
        return found

    def _record(self, value: bytes) -> Input:
        if self._framing == "jsonl":
            return self._json(value)
        if self._key_delimiter:
            key, delimiter, rest = value.partition(self._key_delimiter)
            return Input(rest, key) if delimiter else Input(value, self._key)
        return Input(value, self._key)

    def _json(self, line: bytes) -> Input:
        self._lines += 1
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise TypeError("not an object")
            value = _bytes(fields, "value")
            if value is None:
                raise ValueError('neither "value" nor "value_base64"')
            return Input(value, _bytes(fields, "key") or self._key)
        except (ValueError, TypeError) as error:
            text = f"line {self._lines}: {error}: {line[:60].decode('utf-8', 'replace')}"
            raise Failure(USAGE, "input", text) from error


def _bytes(fields: dict[str, object], name: str) -> bytes | None:
    text, packed = fields.get(name), fields.get(f"{name}_base64")
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    if text is not None:
        return json.dumps(text).encode()  # a number or a document as the value
    if packed is None:
        return None
    try:
        return base64.b64decode(str(packed), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name}_base64: {error}") from None

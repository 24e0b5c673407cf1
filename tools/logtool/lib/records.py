"""Records on their way to stdout: which ones, and in which form."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from engine.formats.record import Record
from netserver.http.query import parse_where
from tools.logtool.lib.output import Output, bytes_fields, json_bytes, printable, time_text

DECODES = ("auto", "text", "hex", "base64", "json", "msgpack")
_CSV_SPECIAL = frozenset(b'",\r\n')
NULL = b"(null)"
"""Stands in lines for the value of a record that has none: Kafka's clients remove a key with it."""
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\", "\\r": "\r"}


def named_partition(text: str) -> tuple[bytes, int | None]:
    """`T` or `T:P` (P a number) as the topic's name and the partition; None: none was named."""
    name, colon, index = text.rpartition(":")
    if colon and index.isascii() and index.isdigit() and len(index) <= 5:
        return name.encode("utf-8", "surrogateescape"), int(index)
    return text.encode("utf-8", "surrogateescape"), None


def topic_and_partition(text: str) -> tuple[bytes, int]:
    """The same where `T` alone is partition 0."""
    name, index = named_partition(text)
    return name, index or 0


def _printable(value: bytes) -> bytes:
    """Bytes for a terminal: what would move the cursor or change colours comes as an escape."""
    return printable(value.decode("utf-8", "backslashreplace"), "\t").encode("utf-8", "backslashreplace")


def decoder(name: str, *, on_terminal: bool) -> Callable[[bytes], bytes]:
    """How a key or value is written. Bytes that are not of that form are a `ValueError`."""
    if name == "auto":
        return _printable if on_terminal else bytes
    if name == "text":
        return lambda value: value.decode("utf-8", "replace").encode()
    if name == "hex":
        return lambda value: value.hex().encode()
    if name == "base64":
        return base64.b64encode
    if name == "json":
        return lambda value: json_bytes(json.loads(value))
    import msgpack
    import msgspec

    def as_json(value: bytes) -> bytes:
        try:
            return msgspec.json.encode(msgpack.unpackb(value, strict_map_key=False, timestamp=3))
        except TypeError as problem:  # a list as a key
            raise ValueError(f"not to be shown as JSON: {problem}") from problem

    return as_json


def formatter(template: str, decode: Callable[[bytes], bytes]) -> Callable[[int, Record], bytes]:
    """A `--format`: %p partition, %o number, %t time, %T milliseconds, %k key, %v value, %s its size, %% percent sign.

    Raises:
        click.BadParameter: an unknown letter after %.
    """
    letters: dict[str, tuple[bytes, Callable[[int, Record], Any]]] = {
        "p": (b"%d", lambda partition, _: partition),
        "o": (b"%d", lambda _, record: record.seq),
        "t": (b"%b", lambda _, record: time_text(record.timestamp_ms).encode()),
        "T": (b"%d", lambda _, record: record.timestamp_ms),
        "k": (b"%b", lambda _, record: decode(record.any_key or b"")),
        "v": (b"%b", lambda _, record: NULL if record.is_null else decode(record.value)),
        "s": (b"%d", lambda _, record: len(record.value)),
    }
    form = b""
    getters: list[Callable[[int, Record], Any]] = []
    at = 0
    while at < len(template):
        pair = template[at : at + 2]
        if pair in _ESCAPES:
            form += _ESCAPES[pair].encode()
        elif pair == "%%":
            form += pair.encode()
        elif pair[0] != "%":
            form += pair[0].encode("utf-8", "surrogateescape")
        elif pair[1:] in letters:
            directive, getter = letters[pair[1]]
            form += directive
            getters.append(getter)
        else:
            raise click.BadParameter(f"{pair!r}: expected %p %o %t %T %k %v %s or %%", param_hint="--format")
        at += 2 if pair in _ESCAPES or pair[0] == "%" else 1
    if form == b"%b\n" and decode is bytes:
        return lambda _, record: (NULL if record.is_null else record.value) + b"\n"  # the usual case
    return lambda partition, record: form % tuple([get(partition, record) for get in getters])


def record_item(record: Record, partition: int | None = None) -> dict[str, Any]:
    """A record as a JSON item; its partition where there are several."""
    item: dict[str, Any] = {} if partition is None else {"partition": partition}
    item |= {"offset": record.seq, "timestamp": time_text(record.timestamp_ms)}
    item["timestamp_ms"] = record.timestamp_ms
    if record.any_key is not None:
        item |= bytes_fields("key", record.any_key)
    item |= _value_fields(None if record.is_null else record.value)
    if record.headers:
        item["headers"] = [bytes_fields("name", name) | _value_fields(value) for name, value in record.header_pairs()]
    return item


def _value_fields(value: bytes | None) -> dict[str, Any]:
    return {"value": None} if value is None else bytes_fields("value", value)


def where_option(text: str) -> tuple[tuple[str, ...], str]:
    """`/pointer/into/json=value`. Raises click.BadParameter."""
    try:
        return parse_where(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--where") from None


class Printer:
    """Writes records in the form that was asked for: lines by `--format`, JSON lines, one JSON document, or CSV.

    Args:
        tells_partition: there are several.
    """

    def __init__(self, output: Output, template: str | None, decode: str, *, tells_partition: bool = False) -> None:
        self.output = output
        self.count = 0
        self.form = "lines" if template is not None or output.form == "table" else output.form
        self._decode = decoder(decode, on_terminal=sys.stdout.isatty())
        self._tells_partition = tells_partition
        self._render: Callable[[int, Record], bytes] = {
            "jsonl": self._json_line,
            "json": self._json,
            "csv": self._csv,
        }.get(self.form, formatter("%v\\n" if template is None else template, self._decode))
        if self.form == "csv":
            output.write(b"partition," * tells_partition + b"offset,timestamp,key,value\n")
        elif self.form == "json":
            output.write(b'{"schema":1,"items":[')

    def write(self, record: Record, partition: int = 0) -> None:
        """One record. Raises ValueError: its value is not of the form that `--decode` asks for."""
        self.output.write(self._render(partition, record))
        self.count += 1

    def _item(self, partition: int, record: Record) -> bytes:
        return json_bytes(record_item(record, partition if self._tells_partition else None))

    def _json_line(self, partition: int, record: Record) -> bytes:
        return self._item(partition, record) + b"\n"

    def _json(self, partition: int, record: Record) -> bytes:
        return (b",\n" if self.count else b"\n") + self._item(partition, record)

    def _csv(self, partition: int, record: Record) -> bytes:
        value = b"" if record.is_null else self._decode(record.value)
        cells = [self._decode(record.any_key or b""), value]
        quoted = [b'"' + cell.replace(b'"', b'""') + b'"' if set(cell) & _CSV_SPECIAL else cell for cell in cells]
        first = [b"%d" % partition] if self._tells_partition else []
        return b",".join([*first, b"%d" % record.seq, time_text(record.timestamp_ms).encode(), *quoted]) + b"\n"

    def end(self) -> None:
        """Finishes the document; also when the command is interrupted."""
        if self.form == "json":
            self.output.write(b"\n]}\n")
        self.output.flush()

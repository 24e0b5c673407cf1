"""Records on their way to stdout: which ones, and in which form."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import click

from engine.formats.record import Record
from tools.logtool.lib.output import Output, bytes_fields, json_bytes, printable, time_text

DECODES = ("auto", "text", "hex", "base64", "json", "msgpack")
_CSV_SPECIAL = frozenset(b'",\r\n')
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\", "\\r": "\r"}


def topic_and_partition(text: str) -> tuple[bytes, int]:
    """`T` or `T:P` (P a number) as the topic's name and the partition; `T` alone is partition 0."""
    name, colon, index = text.rpartition(":")
    if colon and index.isascii() and index.isdigit() and len(index) <= 5:
        return name.encode("utf-8", "surrogateescape"), int(index)
    return text.encode("utf-8", "surrogateescape"), 0


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


def formatter(template: str, decode: Callable[[bytes], bytes]) -> Callable[[Record], bytes]:
    """A `--format`: %o number, %t time, %T milliseconds, %k key, %v value, %s size of the value, %% percent sign.

    Raises:
        click.BadParameter: an unknown letter behind %.
    """
    letters: dict[str, tuple[bytes, Callable[[Record], Any]]] = {
        "o": (b"%d", attrgetter("seq")),
        "t": (b"%b", lambda record: time_text(record.timestamp_ms).encode()),
        "T": (b"%d", attrgetter("timestamp_ms")),
        "k": (b"%b", lambda record: decode(record.key)),
        "v": (b"%b", attrgetter("value") if decode is bytes else lambda record: decode(record.value)),
        "s": (b"%d", lambda record: len(record.value)),
    }
    form = b""
    getters: list[Callable[[Record], Any]] = []
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
            raise click.BadParameter(f"{pair!r}: expected %o %t %T %k %v %s or %%", param_hint="--format")
        at += 2 if pair in _ESCAPES or pair[0] == "%" else 1
    if form == b"%b\n" and decode is bytes:
        return lambda record: record.value + b"\n"  # the usual case
    return lambda record: form % tuple([get(record) for get in getters])


def record_item(record: Record) -> dict[str, Any]:
    """A record as a JSON item."""
    item: dict[str, Any] = {"offset": record.seq, "timestamp": time_text(record.timestamp_ms)}
    item["timestamp_ms"] = record.timestamp_ms
    if record.key:
        item |= bytes_fields("key", record.key)
    item |= bytes_fields("value", record.value)
    if record.headers:
        pairs = zip(record.headers[::2], record.headers[1::2], strict=False)
        item["headers"] = [bytes_fields("name", name) | bytes_fields("value", value) for name, value in pairs]
    return item


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; None = any."""

    key: bytes | None = None
    contains: bytes | None = None
    where: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(steps of a JSON pointer, text of the value that must be there)."""

    @property
    def everything(self) -> bool:
        """Whether every record passes."""
        return self == Filter()

    def wants(self, record: Record) -> bool:
        """Whether a record passes."""
        if self.key is not None and record.key != self.key:
            return False
        if self.contains is not None and self.contains not in record.value:
            return False
        return not self.where or self._matches(record.value)

    def _matches(self, value: bytes) -> bool:
        try:
            document = json.loads(value)
        except ValueError:
            return False
        return all(_pointed(document, steps) == expected for steps, expected in self.where)


def _pointed(document: Any, steps: tuple[str, ...]) -> str | None:
    """What a JSON pointer (RFC 6901) leads to, as text: strings as they are, all else as JSON."""
    for step in steps:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(document):
            document = document[int(step[:9])]
        else:
            return None
    return document if isinstance(document, str) else json.dumps(document)


def parse_where(text: str) -> tuple[tuple[str, ...], str]:
    """`/pointer/into/json=value`. Raises click.BadParameter."""
    pointer, equals, value = text.partition("=")
    if not equals or (pointer and not pointer.startswith("/")):
        raise click.BadParameter(f"{text!r}: expected /pointer=value", param_hint="--where")
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps), value


class Printer:
    """Writes records in the form that was asked for: lines by `--format`, JSON lines, one JSON document, or CSV."""

    def __init__(self, output: Output, template: str | None, decode: str) -> None:
        self.output = output
        self.count = 0
        self.form = "lines" if template is not None or output.form == "table" else output.form
        self._decode = decoder(decode, on_terminal=sys.stdout.isatty())
        self.render: Callable[[Record], bytes] = {"jsonl": _json_line, "json": self._json, "csv": self._csv}.get(
            self.form, formatter("%v\\n" if template is None else template, self._decode)
        )
        """The bytes of one record, in the order of the calls."""
        if self.form == "csv":
            output.write(b"offset,timestamp,key,value\n")
        elif self.form == "json":
            output.write(b'{"schema":1,"items":[')

    def write(self, record: Record) -> None:
        """One record. Raises ValueError: its value is not of the form that `--decode` asks for."""
        self.output.write(self.render(record))
        self.count += 1

    def _json(self, record: Record) -> bytes:
        return (b",\n" if self.count else b"\n") + json_bytes(record_item(record))

    def _csv(self, record: Record) -> bytes:
        cells = [self._decode(record.key), self._decode(record.value)]
        quoted = [b'"' + cell.replace(b'"', b'""') + b'"' if set(cell) & _CSV_SPECIAL else cell for cell in cells]
        return b",".join([b"%d" % record.seq, time_text(record.timestamp_ms).encode(), *quoted]) + b"\n"

    def end(self) -> None:
        """Finishes the document; also when the command is interrupted."""
        if self.form == "json":
            self.output.write(b"\n]}\n")
        self.output.flush()


def _json_line(record: Record) -> bytes:
    return json_bytes(record_item(record)) + b"\n"

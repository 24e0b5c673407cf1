"""Messages by tables: fields with a type and the versions that have them; from these readers and writers are made.

A value of a structure is a ``dict`` by the names of its fields. Integers are big-endian. What differs between versions
is in the tables alone, also whether a version is *flexible*: there lengths are varints (plus one, 0 is null), and each
structure ends with tagged fields, of which none are known here: they are skipped, and written as none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby
from struct import Struct, error
from typing import Any, Final, NamedTuple

from .errors import FormatError
from .limits import ELEMENTS_MAX, SENT_FROM_PLACE_BYTES, STRING_BYTES_MAX, VARINT_BYTES_MAX

Values = dict[str, Any]
LAST: Final = 32_767


class Type(Enum):
    """Types of one value; those of a fixed size have their code of ``struct``."""

    BOOL = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UUID = "16s"
    STRING = 1
    NULLABLE_STRING = 2
    BYTES = 3
    RECORDS = 4
    """A view of what the request brings, or a sequence of buffers to send; null and empty are one."""


class Array(NamedTuple):
    """An array of structures, or of one type.

    Attributes:
        is_nullable: None stands for null.
    """

    of: tuple[Field, ...] | Type
    is_nullable: bool = False


class Field(NamedTuple):
    """A field of a structure.

    Attributes:
        since, until: first and last version that has it.
        default: its value where a version does not have it, and where a writer is not told.
    """

    name: str
    type: Type | Array
    since: int = 0
    default: Any = None
    until: int = LAST


class Output(bytearray):
    """Bytes of a message in the making, but for large buffers: these stay where they are and are sent from there.

    Attributes:
        aside: large buffers, each with its place: how many bytes of this object come before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aside: list[tuple[int, bytes | memoryview]] = []

    @property
    def size_bytes(self) -> int:
        """Of the message so far."""
        return len(self) + sum(len(buffer) for _, buffer in self.aside)

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes, which must not be changed afterwards."""
        if isinstance(data, Output):
            start = len(self)
            self.aside += [(start + place, buffer) for place, buffer in data.aside]
        elif len(data) >= SENT_FROM_PLACE_BYTES and not isinstance(data, bytearray):
            self.aside.append((len(self), data))
            return
        self += data

    def pieces(self) -> Iterator[bytes | bytearray | memoryview]:
        """The whole message, in order; this object must not be changed afterwards."""
        if not self.aside:
            yield self
            return
        own, at = memoryview(self), 0
        for place, buffer in self.aside:
            if place > at:
                yield own[at:place]
            yield buffer
            at = place
        if at < len(own):
            yield own[at:]


class Encoded(NamedTuple):
    """Stands for an array of structures that is encoded already; see ``Structure.inner``."""

    elements: int
    data: bytes | bytearray

    @property
    def size_bytes(self) -> int:
        """Of the elements."""
        return self.data.size_bytes if isinstance(self.data, Output) else len(self.data)


class Reader:
    """Bytes of one message on the way to values."""

    __slots__ = ("at", "data", "elements_left", "end")

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        """The next bytes. Raises FormatError: they are not there."""
        at = self.at
        if size > self.end - at:
            raise FormatError(f"{size} bytes are announced where {self.end - at} are left")
        self.at = at + size
        return self.data[at : self.at]

    def varint(self) -> int:
        """An unsigned varint. Raises FormatError."""
        value = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("a varint of more than 5 bytes")

    def length(self, wide: Struct, *, flexible: bool) -> int:
        """A length, -1 for null; ``wide`` is its form where a version is not flexible."""
        if flexible:
            return self.varint() - 1
        value: int = wide.unpack(self.take(wide.size))[0]
        if value < -1:
            raise FormatError(f"a length of {value}")
        return value

    def skip_tags(self) -> None:
        """Pass over tagged fields."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
Read = Callable[[Reader], Any]
Write = Callable[[bytearray, Any], object]


class Structure:
    """A structure in one version: made once of its fields.

    Args:
        fields: of all versions.

    Attributes:
        inner: the structures of its arrays by the names of the fields, to encode their elements one by one.
    """

    def __init__(self, fields: Iterable[Field], version: int, *, flexible: bool) -> None:
        self._flexible = flexible
        self.inner: dict[str, Structure] = {}
        self._missing: Values = {}
        present = []
        for field in fields:
            if field.since <= version <= field.until:
                present.append(field)
                if isinstance(field.type, Array) and not isinstance(field.type.of, Type):
                    self.inner[field.name] = Structure(field.type.of, version, flexible=flexible)
            else:
                self._missing[field.name] = field.default
        self._steps = list(_steps(present, flexible, self.inner))

    def read(self, reader: Reader) -> Values:
        """The values at the reader's place. Raises FormatError."""
        values = self._missing.copy()
        for names, _, fixed, read, _ in self._steps:
            if fixed is None:
                values[names[0]] = read(reader)
            else:
                try:
                    values.update(zip(names, fixed.unpack_from(reader.data, reader.at), strict=True))
                except error:
                    raise FormatError(f"it ends before {' or '.join(names)}") from None
                reader.at += fixed.size
        if self._flexible:
            reader.skip_tags()
        return values

    def write(self, out: bytearray, values: Values) -> None:
        """Append the bytes of the values."""
        for names, defaults, fixed, _, write in self._steps:
            if fixed is None:
                write(out, values.get(names[0], defaults[0]))
            else:
                out += fixed.pack(*map(values.get, names, defaults))
        if self._flexible:
            out.append(0)


_Step = tuple[list[str], list[Any], "Struct | None", Read, Write]


def _steps(fields: Sequence[Field], flexible: bool, inner: dict[str, Structure]) -> Iterator[_Step]:
    """Fields one by one, and runs of fixed size together."""
    for is_fixed, run in groupby(fields, lambda field: isinstance(field.type, Type) and type(field.type.value) is str):
        found = list(run)
        if is_fixed:
            codes = "".join(field.type.value for field in found if isinstance(field.type, Type))
            defaults = [(b"" if field.type is Type.UUID else 0) if field.default is None else field.default
                        for field in found]  # fmt: skip
            yield [field.name for field in found], defaults, Struct(">" + codes), _none, _nothing
            continue
        for field in found:
            forms = (
                _array(field.type, flexible, inner.get(field.name))
                if isinstance(field.type, Array)
                else _forms(field.type, flexible)
            )
            yield [field.name], [field.default], None, *forms


def _none(_reader: Reader) -> None:
    """Stands where a run of fixed size is read."""


def _nothing(_out: bytearray, _value: object) -> None:
    """Stands where a run of fixed size is written."""


def _forms(kind: Type, flexible: bool) -> tuple[Read, Write]:
    """How to read and write a value."""
    if kind in (Type.BYTES, Type.RECORDS):
        return _buffer(kind, flexible)
    if kind in (Type.STRING, Type.NULLABLE_STRING):
        return _string(kind is Type.NULLABLE_STRING, flexible)
    fixed = Struct(">" + str(kind.value))
    return lambda reader: fixed.unpack(reader.take(fixed.size))[0], lambda out, value: out.extend(fixed.pack(value))


def put_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put(out: bytearray, data: bytes | bytearray | memoryview) -> None:
    if isinstance(out, Output):
        out.put(data)
    else:
        out += data


def _put_length(out: bytearray, length: int, wide: Struct, flexible: bool) -> None:
    if flexible:
        put_varint(out, length + 1)
    else:
        out += wide.pack(length)


def _string(nullable: bool, flexible: bool) -> tuple[Read, Write]:
    def read(reader: Reader) -> str | None:
        length = reader.length(_INT16, flexible=flexible)
        if length < 0:
            if nullable:
                return None
            raise FormatError("null where a string is needed")
        if length > STRING_BYTES_MAX:
            raise FormatError(f"a string of {length} bytes")
        try:
            return str(reader.take(length), "utf-8")
        except UnicodeDecodeError:
            raise FormatError("a string that is not UTF-8") from None

    def write(out: bytearray, value: str | None) -> None:
        if value is None:
            assert nullable, "null where a string is needed"
            _put_length(out, -1, _INT16, flexible)
        else:
            data = value.encode()
            _put_length(out, len(data), _INT16, flexible)
            out += data

    return read, write


def _buffer(kind: Type, flexible: bool) -> tuple[Read, Write]:
    def read(reader: Reader) -> bytes | memoryview:
        length = reader.length(_INT32, flexible=flexible)
        if length < 0 and kind is Type.BYTES:
            raise FormatError("null where bytes are needed")
        data = reader.take(max(length, 0))
        return data if kind is Type.RECORDS else bytes(data)

    def write(out: bytearray, value: bytes | Sequence[bytes | memoryview] | None) -> None:
        pieces = (value,) if isinstance(value, bytes | memoryview) else value or ()
        _put_length(out, sum(map(len, pieces)), _INT32, flexible)
        for piece in pieces:
            _put(out, piece)

    return read, write


def _array(kind: Array, flexible: bool, structure: Structure | None) -> tuple[Read, Write]:
    forms: tuple[Read, Write]
    if structure is not None:
        forms = structure.read, structure.write
    else:
        assert isinstance(kind.of, Type)
        forms = _forms(kind.of, flexible)
    read_one, write_one = forms

    def read(reader: Reader) -> list[Any] | None:
        count = reader.length(_INT32, flexible=flexible)
        if count < 0:
            if kind.is_nullable:
                return None
            raise FormatError("null where an array is needed")
        reader.elements_left -= count
        if reader.elements_left < 0 or count > reader.end - reader.at:
            raise FormatError(f"an array of {count} elements")
        return [read_one(reader) for _ in range(count)]

    def write(out: bytearray, value: Sequence[Any] | Encoded | None) -> None:
        if value is None:
            assert kind.is_nullable, "null where an array is needed"
            _put_length(out, -1, _INT32, flexible)
        elif isinstance(value, Encoded):
            _put_length(out, value.elements, _INT32, flexible)
            _put(out, value.data)
        else:
            _put_length(out, len(value), _INT32, flexible)
            for one in value:
                write_one(out, one)

    return read, write

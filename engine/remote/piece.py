"""A piece: what one commit adds, for all partitions and for the state, in one object.

Layout (little-endian)::

    header      88 bytes   magic 8s "QLPIECE" 00 | format version u32 | header bytes u32 (88)
                           | lineage 16s | epoch u64 | version u64 | nonce u64 | sections u32 | changes u32
                           | bytes of the changes u64 | hash of the changes u64
                           | hash u64 of table and of the 80 bytes before it
    table       72 bytes a section: topic id u64 | partition u32 | reserved u32 (0) | segment id u64
                           | from u64 | to u64 | first number u64 | last number u64 | reserved u64 (0)
                           | hash of its bytes u64
    changes     each: key bytes u16 | value bytes u32, ff ff ff ff: the key is deleted | key | value as it is stored
    sections    their bytes in the order of the table: bytes from..to - 1 of that segment's file

Hashes are xxh3-64. The hash of the header stands for everything, since table and header hold the other ones: a reader
that needs one partition reads header and table (`read_table`) and then the bytes of its section. A section may begin
and end anywhere in a segment's file. Its numbers are those that are whole with it: what was split has them with its
last part, and last = first - 1 in the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import xxhash

from engine.errors import Corrupt, TooLarge, UnsupportedFormat
from engine.limits import LMDB_KEY_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX, STATE_VALUE_BYTES_MAX, TOPIC_ID_MAX
from engine.remote.catalog import ObjectRef
from engine.remote.limits import EPOCH_MAX, NUMBER_MAX, PIECE_BYTES_MAX, PIECE_CHANGES_MAX, PIECE_SECTIONS_MAX
from engine.remote.names import PIECES, Versioned

MAGIC = b"QLPIECE\0"
FORMAT_VERSION = 1
HEADER_BYTES = 88
SECTION_BYTES = 72

_HEADER = struct.Struct("<8sII16sQQQIIQQ")
_HASH = struct.Struct("<Q")
_SECTION = struct.Struct("<QIIQQQQQQQ")
_CHANGE = struct.Struct("<HI")
_DELETED = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Section:
    """Which bytes of which segment: `begin`..`end` - 1 of its file, and the numbers `first`..`last`."""

    topic: int
    partition: int
    segment_id: int
    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the state: a key and its value as it is stored, with its hash. None: the key is deleted."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Table:
    """What a piece says of itself before its bytes."""

    lineage: str
    name: Versioned
    sections: tuple[Section, ...]
    hashes: tuple[int, ...]
    """Of the sections' bytes."""
    places: tuple[int, ...]
    """Where the bytes of each section begin, and where the last ones end."""
    changes: int
    changes_at: int
    changes_hash: int

    def check_section(self, index: int, content: bytes | memoryview) -> None:
        """Raises Corrupt: these are not the bytes of the section."""
        section = self.sections[index]
        if len(content) != section.end - section.begin or xxhash.xxh3_64_intdigest(content) != self.hashes[index]:
            raise Corrupt(str(self.name), self.places[index], "the bytes of a section are damaged (checksum)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole piece; the bytes of `data` belong to the sections of the same index."""

    lineage: str
    name: Versioned
    sections: tuple[Section, ...]
    data: tuple[bytes | memoryview, ...]
    changes: tuple[Change, ...] = ()


def pack_piece(piece: Piece) -> bytes:
    """The object's content. Raises TooLarge; ValueError: bytes and sections do not fit."""
    changes = b"".join(packed_changes(piece.changes))
    size = HEADER_BYTES + SECTION_BYTES * len(piece.sections) + len(changes) + sum(map(len, piece.data))
    if size > PIECE_BYTES_MAX or len(piece.sections) > PIECE_SECTIONS_MAX or len(piece.changes) > PIECE_CHANGES_MAX:
        raise TooLarge(f"a piece of {size} bytes, or of very many parts", PIECE_BYTES_MAX)
    table = b"".join(_row(section, data) for section, data in zip(piece.sections, piece.data, strict=True))
    header = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        HEADER_BYTES,
        bytes.fromhex(piece.lineage),
        piece.name.epoch,
        piece.name.version,
        piece.name.nonce,
        len(piece.sections),
        len(piece.changes),
        len(changes),
        xxhash.xxh3_64_intdigest(changes),
    )
    return b"".join((header, _hash_of(header, table), table, changes, *piece.data))


def piece_ref(piece: Piece, content: bytes) -> ObjectRef:
    """How a head names a packed piece."""
    return ObjectRef(piece.name, len(content), xxhash.xxh3_64_hexdigest(content))


def unpack_piece(content: bytes | memoryview, name: str, lineage: str) -> Piece:
    """The reverse of `pack_piece`, every byte checked; `data` are views of `content`.

    Raises:
        Corrupt: damaged, or not the piece of this name and lineage.
        UnsupportedFormat: of a format that this version does not know.
    """
    if len(content) > PIECE_BYTES_MAX:
        raise Corrupt(name, 0, f"a piece of {len(content)} bytes; at most {PIECE_BYTES_MAX} are allowed")
    table = read_table(content, name, lineage)
    if len(content) != table.places[-1]:
        raise Corrupt(name, len(content), f"the piece has {len(content)} bytes, not {table.places[-1]}")
    view = memoryview(content)
    data = tuple(view[begin:end] for begin, end in zip(table.places, table.places[1:], strict=False))
    for index, part in enumerate(data):
        table.check_section(index, part)
    return Piece(table.lineage, table.name, table.sections, data, read_changes(content, table))


def table_bytes(content: bytes | memoryview, name: str) -> int:
    """How many bytes `read_table` needs, from the first 88. Raises Corrupt, UnsupportedFormat."""
    if len(content) < HEADER_BYTES:
        raise Corrupt(name, 0, f"the header of the piece is cut short ({len(content)} of {HEADER_BYTES} bytes)")
    magic, version, header_bytes, *_, sections, _, _, _ = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise Corrupt(name, 0, "not a piece (wrong magic)")
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(f"{name}: format {version} of pieces; this version reads format {FORMAT_VERSION}")
    if header_bytes != HEADER_BYTES or sections > PIECE_SECTIONS_MAX:
        raise Corrupt(name, 0, "the header of the piece is damaged")
    return HEADER_BYTES + SECTION_BYTES * int(sections)


def read_table(content: bytes | memoryview, name: str, lineage: str) -> Table:
    """Header and table from the first bytes of a piece: `table_bytes` of them. Raises Corrupt, UnsupportedFormat."""
    end = table_bytes(content, name)
    rows = bytes(content[HEADER_BYTES:end])
    header = bytes(content[: _HEADER.size])
    if len(content) < end or _hash_of(header, rows) != content[_HEADER.size : HEADER_BYTES]:
        raise Corrupt(name, 0, "header or table of the piece are damaged (checksum)")
    _, _, _, line, epoch, version, nonce, _, changes, changes_bytes, changes_hash = _HEADER.unpack(header)
    if epoch > EPOCH_MAX or version > NUMBER_MAX or changes > PIECE_CHANGES_MAX or changes_bytes > PIECE_BYTES_MAX:
        raise Corrupt(name, 0, "the header of the piece says what cannot be")
    found = Versioned(PIECES, epoch, version, nonce)
    if str(found) != name or line.hex() != lineage:
        raise Corrupt(name, 0, f"this is {found} of the lineage {line.hex()}")
    parsed = [_section(fields, name) for fields in _SECTION.iter_unpack(rows)]
    sections = tuple(section for section, _ in parsed)
    sizes = (section.end - section.begin for section in sections)
    places = tuple(accumulate(sizes, initial=end + changes_bytes))
    return Table(lineage, found, sections, tuple(digest for _, digest in parsed), places, changes, end, changes_hash)


def read_changes(content: bytes | memoryview, table: Table) -> tuple[Change, ...]:
    """The changes of the state, from the first bytes of a piece up to its sections. Raises Corrupt."""
    name, at, end = str(table.name), table.changes_at, table.places[0]
    if len(content) < end or xxhash.xxh3_64_intdigest(content[at:end]) != table.changes_hash:
        raise Corrupt(name, at, "the changes of the state are damaged (checksum)")
    found = parse_changes(content, at, end, name)
    if len(found) != table.changes:
        raise Corrupt(name, table.changes_at, f"{len(found)} changes of the state, not {table.changes}")
    return found


def parse_changes(content: bytes | bytearray | memoryview, at: int, end: int, name: str) -> tuple[Change, ...]:
    """The changes in `content[at:end]`, as `packed_changes` made them. Raises Corrupt."""
    found: list[Change] = []
    while at < end:
        if end - at < _CHANGE.size:
            raise Corrupt(name, at, "a change of the state is cut short")
        key_bytes, value_bytes = _CHANGE.unpack_from(content, at)
        key_at = at + _CHANGE.size
        value_at = key_at + key_bytes
        at = value_at + (0 if value_bytes == _DELETED else value_bytes)
        fits = 0 < key_bytes <= LMDB_KEY_BYTES_MAX and (value_bytes == _DELETED or value_bytes <= STATE_VALUE_BYTES_MAX)
        if not fits or at > end:
            raise Corrupt(name, key_at - _CHANGE.size, "a change of the state has an impossible size")
        value = None if value_bytes == _DELETED else bytes(content[value_at:at])
        found.append(Change(bytes(content[key_at:value_at]), value))
    return tuple(found)


def packed_changes(changes: Iterable[Change]) -> Iterable[bytes]:
    """Changes as a piece and a copy of the state have them. Raises TooLarge."""
    for change in changes:
        size = _DELETED if change.value is None else len(change.value)
        if not 0 < len(change.key) <= LMDB_KEY_BYTES_MAX or (size != _DELETED and size > STATE_VALUE_BYTES_MAX):
            raise TooLarge(f"a change of the state with the key {change.key[:40]!r}", STATE_VALUE_BYTES_MAX)
        yield _CHANGE.pack(len(change.key), size) + change.key + (change.value or b"")


def _row(section: Section, data: bytes | memoryview) -> bytes:
    if len(data) != section.end - section.begin:
        raise ValueError(f"{len(data)} bytes for a section of {section.end - section.begin}")
    return _SECTION.pack(
        section.topic,
        section.partition,
        0,
        section.segment_id,
        section.begin,
        section.end,
        section.first,
        section.last,
        0,
        xxhash.xxh3_64_intdigest(data),
    )


def _section(fields: tuple[int, ...], name: str) -> tuple[Section, int]:
    topic, partition, reserved, segment_id, begin, end, first, last, reserved_too, digest = fields
    if not 0 < topic <= TOPIC_ID_MAX or partition >= PARTITIONS_PER_TOPIC_MAX or reserved or reserved_too:
        raise Corrupt(name, None, "a section is of no partition")
    if not begin < end <= NUMBER_MAX or end - begin > PIECE_BYTES_MAX or not first or last < first - 1:
        raise Corrupt(name, None, "a section ends before it begins")
    return Section(topic, partition, segment_id, begin, end, first, last), digest


def _hash_of(header: bytes, table: bytes) -> bytes:
    return _HASH.pack(xxhash.xxh3_64_intdigest(header + table))

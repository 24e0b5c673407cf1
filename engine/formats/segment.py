"""One segment file: header, batches, and once sealed a footer. Reading needs nothing but the file itself.

Layout (little-endian; batches as in `engine.formats.batch`)::

    header      72 bytes   magic 8s "QLSEGMNT" | format version u32 | header bytes u32 | topic id u64
                           | partition u32 | partition number u32 | first seq u64 | segment id u64 (random)
                           | created u64 (ms since 1970) | follows u64 | xxh3-64 of the 64 bytes before it
    batches     back to back, from byte 72 on
    footer      only in a sealed segment: msgpack map, keys: "first", "last" (seq), "records", "batches", "end"
                (position after the last batch), "max_timestamp" (ms), "last_append" (ms), "index": bin of
                n x (first seq u64, position u64, max timestamp so far u64), an entry for about every 64 KiB;
                "producers": bin (`engine.segments.producers`), if there are any
    trailer     40 bytes   magic 8s "QLFOOTER" | footer position u64 | footer bytes u32 | reserved u32 (0)
                           | segment id u64 | xxh3-64, seeded with the segment id, of footer and trailer before it

`follows` is the number after the last one of the segment before: from there up to the first seq no number was ever
given out, or none of them was stored. 0: it is not known.

A file is named by the first sequence number that it may hold, 20 digits: ``00000000000000000001.log``. A segment
without a trailer is active: it ends where the `watermarks` file (see `engine.segments.watermarks`) says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import xxhash

from engine.errors import Corrupt, UnsupportedFormat
from engine.files.system import Files
from engine.limits import FOOTER_BYTES_MAX

SUFFIX = ".log"
FORMAT_VERSION = 1
TRAILER_DAMAGED = "segment trailer is damaged (impossible footer position)"
FOOTER_DAMAGED = "segment footer is damaged (checksum)"
HEADER_BYTES = 72
TRAILER_BYTES = 40
INDEX_INTERVAL_BYTES = 64 * 1024

_HEADER = struct.Struct("<8sIIQIIQQQQ")
_TRAILER = struct.Struct("<8sQIIQ")
_HASH = struct.Struct("<Q")
_INDEX_ENTRY = struct.Struct("<QQQ")
_HEADER_MAGIC = b"QLSEGMNT"
_TRAILER_MAGIC = b"QLFOOTER"


def segment_name(first_seq: int) -> str:
    """File name of the segment that begins with `first_seq`."""
    return f"{first_seq:020d}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """First sequence number in a file name, None when it is no segment's name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 20 or not stem.isascii() or not stem.isdigit():
        return None
    return int(stem)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Who a segment file belongs to."""

    topic_id: int
    partition: int
    number: int
    """Number of the partition in the catalog (its slot in `watermarks`)."""
    first_seq: int
    segment_id: int
    """Random; seeds every hash of the file, so that no byte of another file is taken for one of this."""
    created_ms: int
    follows: int = 0
    """The number after the last one of the segment before; 0: not known."""

    @property
    def begins(self) -> int:
        """Where the log begins when this is its oldest segment: nothing is missing from there to its first number."""
        return self.follows if 0 < self.follows < self.first_seq else self.first_seq

    @property
    def left_out_from(self) -> int:
        """No record ever had a number from here to its first one. 0: it is not known."""
        return self.begins if self.follows else 0

    def pack(self) -> bytes:
        """The 72 bytes at the beginning of the file."""
        body = _HEADER.pack(
            _HEADER_MAGIC,
            FORMAT_VERSION,
            HEADER_BYTES,
            self.topic_id,
            self.partition,
            self.number,
            self.first_seq,
            self.segment_id,
            self.created_ms,
            self.follows,
        )
        return body + _HASH.pack(xxhash.xxh3_64_intdigest(body))


def parse_header(data: bytes, path: Path) -> SegmentHeader:
    """Reads the first 72 bytes of a segment file.

    Raises:
        Corrupt: cut short, no segment file, or damaged.
        UnsupportedFormat: written by a newer version.
    """
    if len(data) < HEADER_BYTES:
        raise Corrupt(path, 0, f"segment header is cut short ({len(data)} of {HEADER_BYTES} bytes)")
    magic, version, _size, topic_id, partition, number, first_seq, segment_id, created_ms, follows = (
        _HEADER.unpack_from(data)
    )
    if magic != _HEADER_MAGIC:
        raise Corrupt(path, 0, "not a segment file (wrong magic)")
    if _HASH.unpack_from(data, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(data[: _HEADER.size]):
        raise Corrupt(path, 0, "segment header is damaged (checksum)")
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(f"{path}: segment format {version}; this version reads format {FORMAT_VERSION}")
    return SegmentHeader(topic_id, partition, number, first_seq, segment_id, created_ms, follows)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A batch that begins at `position` with `first_seq`; no earlier record is newer than `max_timestamp_ms`."""

    first_seq: int
    position: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What a sealed segment says of itself."""

    first_seq: int
    last_seq: int
    """first_seq - 1 when the segment holds nothing."""
    records: int
    batches: int
    end: int
    """Position after the last batch, where the footer begins."""
    max_timestamp_ms: int
    last_append_ms: int
    """When its last record was appended: what retention by age goes by."""
    index: tuple[IndexEntry, ...]
    producers: bytes = b""
    """What is known of producers that number their records (`engine.segments.producers`)."""

    def pack(self, segment_id: int) -> bytes:
        """Footer and trailer, as they are appended to the file at position `end`."""
        fields: dict[str, Any] = {"producers": self.producers} if self.producers else {}
        body: bytes = msgpack.packb(
            {
                "first": self.first_seq,
                "last": self.last_seq,
                "records": self.records,
                "batches": self.batches,
                "end": self.end,
                "max_timestamp": self.max_timestamp_ms,
                "last_append": self.last_append_ms,
                "index": b"".join(
                    _INDEX_ENTRY.pack(entry.first_seq, entry.position, entry.max_timestamp_ms) for entry in self.index
                ),
                **fields,
            }
        )
        trailer = _TRAILER.pack(_TRAILER_MAGIC, self.end, len(body), 0, segment_id)
        return body + trailer + _HASH.pack(xxhash.xxh3_64_intdigest(body + trailer, segment_id))


def read_footer(files: Files, fd: int, size_bytes: int, path: Path) -> tuple[Footer, int] | None:
    """Footer and segment id of a sealed segment of `size_bytes`, None when the file does not end in a trailer.

    Raises:
        Corrupt: there is a trailer, but it or the footer is damaged.
    """
    if size_bytes < HEADER_BYTES + TRAILER_BYTES:
        return None
    tail_position = size_bytes - TRAILER_BYTES
    tail = files.read(fd, TRAILER_BYTES, tail_position)
    if len(tail) < TRAILER_BYTES or not tail.startswith(_TRAILER_MAGIC):
        return None
    _magic, position, length, _, segment_id = _TRAILER.unpack_from(tail)
    if length > FOOTER_BYTES_MAX or position + length != tail_position or position < HEADER_BYTES:
        raise Corrupt(path, tail_position, TRAILER_DAMAGED)
    body = files.read(fd, length, position)
    digest = xxhash.xxh3_64_intdigest(body + tail[: _TRAILER.size], segment_id)
    if digest != _HASH.unpack_from(tail, _TRAILER.size)[0]:
        raise Corrupt(path, position, FOOTER_DAMAGED)
    return _unpack_footer(msgpack.unpackb(body)), segment_id


def trailer_segment_id(tail: bytes) -> tuple[int, ...]:
    """The segment id that the last bytes of a file state, whether or not they are whole; () without a trailer."""
    trailer = tail[-TRAILER_BYTES:]
    if len(trailer) < TRAILER_BYTES or not trailer.startswith(_TRAILER_MAGIC):
        return ()
    return (_TRAILER.unpack_from(trailer)[4],)


def damaged_segment_id(data: bytes, topic_id: int, partition: int, first_seq: int) -> tuple[int, ...]:
    """The segment id in a damaged header, if no more than one of its other fields speaks against that place."""
    if len(data) < HEADER_BYTES:
        return ()
    fields = _HEADER.unpack_from(data)
    agreeing = (fields[3] == topic_id) + (fields[4] == partition) + (fields[6] == first_seq)
    return (fields[7],) if agreeing >= 2 else ()


def _unpack_footer(fields: dict[str, Any]) -> Footer:
    index = tuple(IndexEntry(*entry) for entry in _INDEX_ENTRY.iter_unpack(fields["index"]))
    return Footer(
        first_seq=fields["first"],
        last_seq=fields["last"],
        records=fields["records"],
        batches=fields["batches"],
        end=fields["end"],
        max_timestamp_ms=fields["max_timestamp"],
        last_append_ms=fields["last_append"],
        index=index,
        producers=fields.get("producers", b""),
    )

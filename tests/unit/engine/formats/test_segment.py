"""Segment header, footer and file names: bytes on disk, and what damage to them is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import Corrupt, UnsupportedFormat
from engine.files.system import SystemFiles
from engine.formats.segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Footer,
    IndexEntry,
    SegmentHeader,
    parse_header,
    parse_segment_name,
    read_footer,
    segment_name,
)

HEADER = SegmentHeader(
    topic_id=7, partition=3, number=12, first_seq=1001, segment_id=0xDEADBEEF, created_ms=1_795_822_592_000
)
FOOTER = Footer(
    1001,
    1250,
    250,
    3,
    40_000,
    1_795_822_593_000,
    1_795_822_593_500,
    (IndexEntry(1001, 72, 5), IndexEntry(1200, 30_000, 9)),
)
PATH = Path("segment.log")


def test_header_bytes_are_as_documented() -> None:
    packed = HEADER.pack()
    assert len(packed) == HEADER_BYTES == 72
    assert packed.startswith(
        b"QLSEGMNT\x01\x00\x00\x00\x48\x00\x00\x00\x07" + bytes(7) + b"\x03\x00\x00\x00\x0c\x00\x00\x00\xe9\x03"
    )
    assert parse_header(packed, PATH) == HEADER


def test_every_flipped_bit_of_a_header_is_found() -> None:
    packed = bytearray(HEADER.pack())
    for bit in range(len(packed) * 8):
        packed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            parse_header(bytes(packed), PATH)
        packed[bit // 8] ^= 1 << bit % 8


def test_every_cut_header_is_found() -> None:
    for size in range(HEADER_BYTES):
        with pytest.raises(Corrupt, match="cut short"):
            parse_header(HEADER.pack()[:size], PATH)


def test_a_newer_format_is_named() -> None:
    import struct

    import xxhash

    body = bytearray(HEADER.pack()[:64])
    struct.pack_into("<I", body, 8, 2)
    data = bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))
    with pytest.raises(UnsupportedFormat, match="segment format 2"):
        parse_header(data, PATH)


def test_zeros_are_no_header() -> None:
    with pytest.raises(Corrupt, match="magic"):
        parse_header(bytes(HEADER_BYTES), PATH)


def footer_file(tmp_path: Path, content: bytes) -> tuple[SystemFiles, int, int]:
    path = tmp_path / "s.log"
    path.write_bytes(content)
    files = SystemFiles()
    return files, files.open(path), len(content)


def test_footer_round_trip(tmp_path: Path) -> None:
    files, fd, size = footer_file(tmp_path, bytes(40_000) + FOOTER.pack(HEADER.segment_id))
    assert read_footer(files, fd, size, PATH) == (FOOTER, HEADER.segment_id)
    files.close(fd)


def test_a_file_without_trailer_has_no_footer(tmp_path: Path) -> None:
    for content in (b"", bytes(HEADER_BYTES), bytes(5000)):
        files, fd, size = footer_file(tmp_path, content)
        assert read_footer(files, fd, size, PATH) is None
        files.close(fd)


def test_every_flipped_bit_of_footer_and_trailer_is_found(tmp_path: Path) -> None:
    packed = FOOTER.pack(HEADER.segment_id)
    content = bytearray(bytes(40_000) + packed)
    for bit in range(40_000 * 8, len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        files, fd, size = footer_file(tmp_path, bytes(content))
        in_magic = bit // 8 >= size - TRAILER_BYTES and bit // 8 < size - TRAILER_BYTES + 8
        if in_magic:
            assert read_footer(files, fd, size, PATH) is None
        else:
            with pytest.raises(Corrupt):
                read_footer(files, fd, size, PATH)
        files.close(fd)
        content[bit // 8] ^= 1 << bit % 8


def test_names() -> None:
    assert segment_name(1) == "00000000000000000001.log"
    assert parse_segment_name("00000000000000000001.log") == 1
    assert parse_segment_name(segment_name(2**64 - 1)) == 2**64 - 1
    for name in (
        "1.log",
        "00000000000000000001",
        "0000000000000000000x.log",
        "00000000000000000001.log.damaged",
        ".log",
    ):
        assert parse_segment_name(name) is None

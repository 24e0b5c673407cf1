"""Pieces: their bytes, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import xxhash

from engine.errors import Corrupt, TooLarge, UnsupportedFormat
from engine.remote import piece as codec
from engine.remote.catalog import ObjectRef
from engine.remote.piece import (
    HEADER_BYTES,
    SECTION_BYTES,
    Change,
    pack_piece,
    piece_ref,
    read_table,
    table_bytes,
    unpack_piece,
)
from tests.remote_objects import LINEAGE, piece

NAME = str(piece().name)
GOLDEN = bytes.fromhex(
    "514c504945434500010000005800000000112233445566778899aabbccddeeff02000000000000000700000000000000"
    "efbeadde000000000200000002000000170000000000000041eed9f2a86411b29d3fb9a649c7e1c60c00000000000000"
    "0000000000000000ffffffffffffffff48000000000000004d0000000000000065000000000000006600000000000000"
    "0000000000000000fddc625c55e855950c00000000000000010000000000000005000000000000000000000000000000"
    "030000000000000001000000000000000000000000000000000000000000000050392f89945faf78030005000000742f"
    "0076616c75650300ffffffff722f7868656c6c6f616263"
)
CHANGES_AT = HEADER_BYTES + 2 * SECTION_BYTES


def sealed(content: bytes) -> bytes:
    """With the hash of header and table made right again, and that of the changes."""
    changes_bytes = struct.unpack_from("<Q", content, 64)[0]
    changed = bytearray(content)
    struct.pack_into("<Q", changed, 72, xxhash.xxh3_64_intdigest(content[CHANGES_AT : CHANGES_AT + changes_bytes]))
    table = bytes(changed[HEADER_BYTES:CHANGES_AT])
    struct.pack_into("<Q", changed, 80, xxhash.xxh3_64_intdigest(bytes(changed[:80]) + table))
    return bytes(changed)


def patched(at: int, form: str, *values: int) -> bytes:
    content = bytearray(pack_piece(piece()))
    struct.pack_into(form, content, at, *values)
    return sealed(bytes(content))


def test_a_piece_is_as_documented() -> None:
    assert pack_piece(piece()) == GOLDEN
    assert unpack_piece(GOLDEN, NAME, LINEAGE) == piece()
    assert piece_ref(piece(), GOLDEN) == ObjectRef(piece().name, len(GOLDEN), xxhash.xxh3_64_hexdigest(GOLDEN))


def test_every_flipped_bit_is_found() -> None:
    content = bytearray(GOLDEN)
    for bit in range(len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupt, UnsupportedFormat)):
            unpack_piece(content, NAME, LINEAGE)
        content[bit // 8] ^= 1 << bit % 8


def test_every_cut_piece_is_found() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(Corrupt):
            unpack_piece(GOLDEN[:size], NAME, LINEAGE)
    with pytest.raises(Corrupt, match="bytes, not"):
        unpack_piece(GOLDEN + b"x", NAME, LINEAGE)


def test_one_section_can_be_read_alone() -> None:
    end = table_bytes(GOLDEN[:HEADER_BYTES], NAME)
    table = read_table(GOLDEN[:end], NAME, LINEAGE)
    part = GOLDEN[table.places[0] : table.places[1]]
    assert part == b"hello"
    table.check_section(0, part)
    for wrong in (b"hellx", b"hell"):
        with pytest.raises(Corrupt, match="bytes of a section"):
            table.check_section(0, wrong)


def test_another_piece_is_not_taken_for_it() -> None:
    other = str(replace(piece().name, version=8))
    with pytest.raises(Corrupt, match=r"this is pieces/0000000002-0000000000000000007"):
        unpack_piece(GOLDEN, other, LINEAGE)
    with pytest.raises(Corrupt, match="of the lineage 0011"):
        unpack_piece(GOLDEN, NAME, "f" * 32)


def test_another_format_is_named() -> None:
    with pytest.raises(UnsupportedFormat, match="format 2 of pieces; this version reads format 1"):
        unpack_piece(patched(8, "<I", 2), NAME, LINEAGE)


@pytest.mark.parametrize(
    ("at", "form", "value", "reason"),
    [
        (12, "<I", 96, "header of the piece is damaged"),
        (56, "<I", (1 << 16) + 1, "header of the piece is damaged"),
        (32, "<Q", 1 << 32, "says what cannot be"),
        (40, "<Q", 1 << 63, "says what cannot be"),
        (60, "<I", (1 << 20) + 1, "says what cannot be"),
        (64, "<Q", (128 << 20) + 1, "says what cannot be"),
        (60, "<I", 3, "2 changes of the state, not 3"),
        (HEADER_BYTES, "<Q", 0, "of no partition"),
        (HEADER_BYTES, "<Q", 1 << 63, "of no partition"),
        (HEADER_BYTES + 8, "<I", 65_535, "of no partition"),
        (HEADER_BYTES + 12, "<I", 1, "of no partition"),
        (HEADER_BYTES + 56, "<Q", 1, "of no partition"),
        (HEADER_BYTES + 24, "<Q", 77, "ends before it begins"),
        (HEADER_BYTES + 32, "<Q", 1 << 63, "ends before it begins"),
        (HEADER_BYTES + 32, "<Q", (128 << 20) + 73, "ends before it begins"),
        (HEADER_BYTES + 40, "<Q", 0, "ends before it begins"),
        (HEADER_BYTES + 48, "<Q", 99, "ends before it begins"),
        (HEADER_BYTES + 32, "<Q", 78, "bytes, not"),
        (CHANGES_AT, "<H", 0, "impossible size"),
        (CHANGES_AT, "<H", 512, "impossible size"),
        (CHANGES_AT + 2, "<I", (16 << 20) + 1, "impossible size"),
        (CHANGES_AT + 2, "<I", 1000, "impossible size"),
        (CHANGES_AT + 2, "<I", 12, "cut short"),
    ],
)
def test_a_piece_that_is_not_right_is_refused(at: int, form: str, value: int, reason: str) -> None:
    """Though all hashes are right."""
    with pytest.raises(Corrupt, match=reason):
        unpack_piece(patched(at, form, value), NAME, LINEAGE)


def test_a_key_has_at_least_a_byte() -> None:
    """The value takes the bytes of the key, so that all other sizes are right."""
    with pytest.raises(Corrupt, match="impossible size"):
        unpack_piece(patched(CHANGES_AT, "<HI", 0, 8), NAME, LINEAGE)


def test_limits_are_checked_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(codec, "PIECE_BYTES_MAX", len(GOLDEN) - 1)
        with pytest.raises(TooLarge):
            pack_piece(piece())
        with pytest.raises(Corrupt, match="at most"):
            unpack_piece(GOLDEN, NAME, LINEAGE)
    for limit in ("PIECE_SECTIONS_MAX", "PIECE_CHANGES_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(codec, limit, 1)
            with pytest.raises(TooLarge):
                pack_piece(piece())


@pytest.mark.parametrize("change", [Change(b"", b""), Change(b"k" * 512, None), Change(b"k", bytes((16 << 20) + 1))])
def test_changes_that_no_state_takes_are_not_packed(change: Change) -> None:
    with pytest.raises(TooLarge, match="a change of the state"):
        pack_piece(replace(piece(), changes=(change,)))


def test_bytes_have_to_fit_their_sections() -> None:
    with pytest.raises(ValueError, match="4 bytes for a section of 5"):
        pack_piece(replace(piece(), data=(b"hell", b"abc")))
    with pytest.raises(ValueError, match="shorter"):
        pack_piece(replace(piece(), data=(b"hello",)))

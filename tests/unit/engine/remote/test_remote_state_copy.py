"""Copies of the state: what comes out is what went in, and every damage is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Corrupt, UnsupportedFormat
from engine.remote import state_copy
from engine.remote.names import STATE, Versioned
from engine.remote.piece import Change
from engine.remote.state_copy import StateUnpacker, pack_state
from tests.remote_objects import LINEAGE

NAME = Versioned(STATE, 2, 7, 0xABC)
ENTRIES = [(b"c/next", b"12345678\x01"), (b"t/\0\1", b"x" * 40), (b"u/\0", b"y" * 9)]


def packed(entries: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(pack_state(LINEAGE, NAME, entries))


def unpacked(content: bytes, step: int = 1 << 20, name: Versioned = NAME, lineage: str = LINEAGE) -> list[Change]:
    unpacker, found = StateUnpacker(str(name), lineage), []
    for at in range(0, len(content), step):
        for changes in unpacker.feed(content[at : at + step]):
            found += changes
    unpacker.end()
    return found


@given(st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=60), max_size=30), st.integers(1, 200))
@settings(max_examples=60)
def test_what_went_in_comes_out(entries: dict[bytes, bytes], step: int) -> None:
    rows = sorted(entries.items())
    assert unpacked(packed(rows), step) == [Change(key, value) for key, value in rows]


def test_many_keys_are_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copy, "STATE_BLOCK_BYTES", 50)
    assert len(list(pack_state(LINEAGE, NAME, ENTRIES))) == 4  # header, two blocks, the end
    assert unpacked(packed(ENTRIES)) == [Change(key, value) for key, value in ENTRIES]
    with pytest.raises(Corrupt, match="keys of a block"):
        unpacked(packed(ENTRIES[::-1]))


def test_every_flipped_bit_is_found() -> None:
    content = bytearray(packed(ENTRIES))
    for bit in range(len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupt, UnsupportedFormat)):
            unpacked(bytes(content))
        content[bit // 8] ^= 1 << bit % 8


def test_every_cut_copy_is_found() -> None:
    content = packed(ENTRIES)
    for size in range(len(content)):
        with pytest.raises(Corrupt):
            unpacked(content[:size])
    with pytest.raises(Corrupt, match="more than its blocks"):
        unpacked(content + b"x")


def test_another_copy_is_not_taken_for_it() -> None:
    content = packed(ENTRIES)
    with pytest.raises(Corrupt, match="this is state/0000000002-0000000000000000007"):
        unpacked(content, name=replace(NAME, version=8))
    with pytest.raises(Corrupt, match="of the lineage 0011"):
        unpacked(content, lineage="f" * 32)


def test_another_format_is_named() -> None:
    content = bytearray(packed(ENTRIES))
    content[8] = 2
    with pytest.raises(UnsupportedFormat, match="format 2 of copies of the state; this version reads format 1"):
        unpacked(bytes(content))

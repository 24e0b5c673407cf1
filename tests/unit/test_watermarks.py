"""The watermarks file: newest valid slot wins, torn slots fall back, foreign files are set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import Corrupt
from engine.files import SystemFiles
from engine.watermarks import PAIR_BYTES, SLOT_BYTES, Watermark, Watermarks


def mark(seq: int) -> Watermark:
    return Watermark(1, 1, seq, 72 + seq, 72 + seq, 99)


def opened(path: Path, directory_id: int = 5, **options: bool) -> Watermarks:
    return Watermarks(SystemFiles(), path / "watermarks", directory_id, **options)


def test_the_newest_slot_is_read_back(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    assert marks.missing
    assert marks.read(1) is None
    for seq in range(1, 6):
        marks.write(3, mark(seq))
        assert marks.read(3) == mark(seq)
    assert marks.read(2) is None
    marks.sync()
    marks.close()
    again = opened(tmp_path)
    assert not again.missing
    assert again.read(3) == mark(5)
    again.write(3, mark(6))
    assert again.read(3) == mark(6)
    again.close()


def test_any_damage_to_the_newest_slot_gives_the_one_before(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(1, mark(1))
    marks.write(1, mark(2))
    marks.close()
    path = tmp_path / "watermarks"
    whole = path.read_bytes()
    newest = PAIR_BYTES + (2 & 1) * SLOT_BYTES
    for bit in range(newest * 8, (newest + SLOT_BYTES) * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        again = opened(tmp_path)
        assert again.read(1) == mark(1)
        again.close()


def test_a_slot_of_another_partition_or_directory_is_not_taken(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(1, mark(1))
    marks.close()
    path = tmp_path / "watermarks"
    content = path.read_bytes()
    path.write_bytes(content[:PAIR_BYTES] * 2 + content[PAIR_BYTES:])
    again = opened(tmp_path)
    assert again.read(2) is None
    again.close()


def test_a_damaged_header_starts_a_new_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = tmp_path / "watermarks"
    path.write_bytes(b"garbage" * 40)
    again = opened(tmp_path)
    assert again.missing
    assert (tmp_path / "watermarks.damaged").read_bytes() == b"garbage" * 40
    again.close()
    path.write_bytes(b"garbage" * 40)
    with pytest.raises(Corrupt):
        opened(tmp_path, read_only=True)


def test_a_file_of_another_directory_is_not_used(tmp_path: Path) -> None:
    marks = opened(tmp_path, 5)
    marks.write(1, mark(1))
    marks.close()
    again = opened(tmp_path, 6)
    assert again.missing
    assert again.read(1) is None
    again.close()


def test_cleared_slots_are_empty_and_start_again(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(4, mark(9))
    marks.clear(4)
    assert marks.read(4) is None
    marks.write(4, mark(1))
    assert marks.read(4) == mark(1)
    marks.close()

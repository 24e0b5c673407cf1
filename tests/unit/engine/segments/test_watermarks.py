"""The watermarks file: newest valid slot wins, torn slots fall back, foreign files are set aside."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import xxhash

from engine.errors import Corrupt, UnsupportedFormat
from engine.files.system import SystemFiles
from engine.segments.watermarks import PAIR_BYTES, SLOT_BYTES, Owner, Watermark, Watermarks
from tests.hooked_files import HookedFiles


def mark(seq: int) -> Watermark:
    return Watermark(1, 1, seq, 72 + seq, 72 + seq, 99)


def owner(number: int) -> Owner:
    return Owner(number, 70 + number, 0)


def opened(path: Path, directory_id: int = 5, **options: bool) -> Watermarks:
    return Watermarks(SystemFiles(), path / "watermarks", directory_id, **options)


def test_the_newest_slot_is_read_back(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    assert marks.missing
    assert marks.read(owner(1)) is None
    for seq in range(1, 6):
        marks.write(owner(3), mark(seq))
        assert marks.read(owner(3)) == mark(seq)
    assert marks.read(owner(2)) is None
    marks.sync()
    marks.close()
    again = opened(tmp_path)
    assert not again.missing
    assert again.read(owner(3)) == mark(5)
    again.write(owner(3), mark(6))
    assert again.read(owner(3)) == mark(6)
    again.close()


def test_any_damage_to_the_newest_slot_gives_the_one_before(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(owner(1), mark(1))
    marks.write(owner(1), mark(2))
    marks.close()
    path = tmp_path / "watermarks"
    whole = path.read_bytes()
    newest = PAIR_BYTES + (2 & 1) * SLOT_BYTES
    for bit in range(newest * 8, (newest + SLOT_BYTES) * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        again = opened(tmp_path)
        assert again.read(owner(1)) == mark(1)
        again.close()


def test_a_slot_of_another_partition_or_directory_is_not_taken(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(owner(1), mark(1))
    marks.close()
    path = tmp_path / "watermarks"
    content = path.read_bytes()
    path.write_bytes(content[:PAIR_BYTES] * 2 + content[PAIR_BYTES:])
    again = opened(tmp_path)
    assert again.read(owner(2)) is None
    again.close()


def test_a_number_that_was_given_again_does_not_bring_the_mark_of_its_former_owner(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(Owner(1, 7, 0), mark(1))
    marks.write(Owner(1, 7, 0), mark(2))
    for other in (Owner(1, 8, 0), Owner(1, 7, 1)):
        assert marks.read(other) is None
    marks.write(Owner(1, 8, 0), mark(3))
    assert marks.read(Owner(1, 8, 0)) == mark(3)
    marks.close()
    again = opened(tmp_path)
    again.write(Owner(1, 9, 0), mark(4))
    assert again.read(Owner(1, 9, 0)) == mark(4)
    again.close()


def test_a_failed_sync_leaves_the_file_to_be_synced(tmp_path: Path) -> None:
    class Failing(SystemFiles):
        def sync_data(self, fd: int) -> None:
            raise OSError(5, "Input/output error")

    opened(tmp_path).close()
    marks = Watermarks(Failing(), tmp_path / "watermarks", 5)
    marks.write(owner(1), mark(1))
    with pytest.raises(OSError, match="Input/output"):
        marks.sync()
    assert marks.dirty
    marks.close()


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


def test_a_damaged_header_costs_no_slot(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    for number in (1, 2, 3):
        marks.write(owner(number), mark(number))
    marks.close()
    path = tmp_path / "watermarks"
    whole = path.read_bytes()
    for bit in range(32 * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        again = opened(tmp_path)
        assert [again.read(owner(number)) for number in (1, 2, 3)] == [mark(1), mark(2), mark(3)]
        again.close()
    assert len(list(tmp_path.glob("watermarks.damaged*"))) == 32 * 8, "what is set aside replaces nothing"


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = tmp_path / "watermarks"
    body = struct.pack("<8sIIQ", b"QLWATERM", 2, 0, 5)
    path.write_bytes((body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))).ljust(PAIR_BYTES, b"\0"))
    for read_only in (True, False):
        with pytest.raises(UnsupportedFormat, match="format 2"):
            opened(tmp_path, read_only=read_only)
    assert path.read_bytes()[:24] == body


def test_a_file_of_another_directory_is_not_used(tmp_path: Path) -> None:
    marks = opened(tmp_path, 5)
    marks.write(owner(1), mark(1))
    marks.close()
    again = opened(tmp_path, 6)
    assert again.missing
    assert again.read(owner(1)) is None
    again.close()


def test_cleared_slots_are_empty_and_start_again(tmp_path: Path) -> None:
    marks = opened(tmp_path)
    marks.write(owner(4), mark(9))
    marks.clear(4)
    assert marks.read(owner(4)) is None
    marks.write(owner(4), mark(1))
    assert marks.read(owner(4)) == mark(1)
    marks.close()


def test_a_slot_counts_once_it_is_written(tmp_path: Path) -> None:
    """One whose writing fails behind a failed sync is not taken for covered by the next sync."""
    files = HookedFiles()
    marks = Watermarks(files, tmp_path / "watermarks", 5)
    marks.write(owner(1), mark(1))
    files.failing_once("sync_data", "watermarks")
    with pytest.raises(OSError, match="Input/output"):
        marks.sync()
    files.failing_once("write", "watermarks")
    with pytest.raises(OSError, match="Input/output"):
        marks.write(owner(1), mark(2))
    marks.sync()
    assert not marks.covers(1)
    marks.write(owner(1), mark(2))
    marks.sync()
    assert marks.covers(1)
    marks.close()

"""Walking the batches of a file: in blocks of any size, past damage, and when the bytes would have to be waited for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from engine.files.system import SystemFiles
from engine.formats.batch import BatchWriter, seal
from engine.formats.batch_header import HEADER_BYTES, MAGIC_BYTES
from engine.limits import SCAN_BYTES
from engine.segments.damage import Damage, Found, careful_read, find, highest_seq, walk

SEGMENT_ID = 77


def batches(*sizes: int, first_seq: int = 1) -> tuple[bytearray, list[int]]:
    """A file of batches of one record each, with the size of its value, and where each ends."""
    data = bytearray()
    ends = []
    for number, size in enumerate(sizes):
        writer = BatchWriter(bytearray(size + 500), first_seq + number)
        writer.begin(1)
        assert writer.put_record(b"%d" % number * size, b"", 1)
        writer.close_batch()
        data += writer.buffer[: writer.position]
        ends.append(len(data))
    start = 0
    for end in ends:
        seal(data, start, end, SEGMENT_ID, start, 0)
        start = end
    return data, ends


def reader(data: bytearray):  # type: ignore[no-untyped-def]
    return lambda position, size: bytes(data[position : position + size])


@pytest.mark.parametrize("block_bytes", [HEADER_BYTES, 300, 1 << 20])
def test_blocks_of_any_size_give_the_same_batches(block_bytes: int) -> None:
    data, ends = batches(10, 5000, 1, 700, 3)
    found = list(walk(reader(data), 0, len(data), SEGMENT_ID, 1, block_bytes))
    assert all(isinstance(item, Found) for item in found)
    assert [item.last_seq for item in found if isinstance(item, Found)][-1] == 5
    assert sum(item.end - item.start for item in found if isinstance(item, Found)) == len(data)
    assert ends[-1] == len(data)


def test_it_never_waits_for_what_is_not_there_yet() -> None:
    data, ends = batches(10, 20, 30)

    def cached(limit: int):  # type: ignore[no-untyped-def]
        return lambda position, size: bytes(data[position : position + size]) if position + size <= limit else None

    assert list(walk(cached(0), 0, len(data), SEGMENT_ID, 1)) == [None]
    assert find(cached(0), 0, len(data), SEGMENT_ID, 1, 2, 100) is None
    data[ends[0] + 3] ^= 1  # the second batch's header: what follows would have to be read
    items = list(walk(cached(ends[1]), 0, len(data), SEGMENT_ID, 1, ends[0]))
    assert isinstance(items[0], Found)
    assert items[1:] == [None]


def test_damage_in_front_of_a_batch_that_is_damaged_too_goes_on_to_the_next_good_one() -> None:
    data, ends = batches(10, 20, 30, 40)
    data[ends[0] + 3] ^= 1
    data[ends[2] - 1] ^= 1
    items = list(walk(reader(data), 0, len(data), SEGMENT_ID, 1))
    assert [type(item) for item in items] == [Found, Damage, Found]
    damage = items[1]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.end, damage.first_seq, damage.last_seq) == (ends[0], ends[2], 2, 3)


def test_numbers_that_do_not_rise_are_damage() -> None:
    first, _ = batches(10, first_seq=5)
    second, _ = batches(10, first_seq=5)
    data = first + second
    seal(data, 0, len(data), SEGMENT_ID, 0, 0)
    data = bytearray(data)
    for position in (0, len(first)):
        data[position + 16 : position + 32] = (5).to_bytes(8, "little") * 2
    seal(data, 0, len(data), SEGMENT_ID, 0, 0)
    items = list(walk(reader(data), 0, len(data), SEGMENT_ID, 1))
    assert isinstance(items[0], Found)
    assert (items[0].first_seq, items[0].last_seq) == (5, 5)


def test_a_magic_number_at_every_place_of_a_block() -> None:
    """The search goes over the borders of its blocks."""
    data, ends = batches(10, SCAN_BYTES - 300, 10, 20)
    data[3] ^= 1
    data[ends[0] + 3] ^= 1
    items = list(walk(reader(data), 0, len(data), SEGMENT_ID, 1))
    assert [type(item) for item in items] == [Damage, Found]
    for shift in range(-8, 9):
        padded = bytearray(SCAN_BYTES + shift) + data[ends[1] :]
        seal(padded, SCAN_BYTES + shift, len(padded), SEGMENT_ID, SCAN_BYTES + shift, 0)
        found = list(walk(reader(padded), 0, len(padded), SEGMENT_ID, 1))
        assert [type(item) for item in found] == [Damage, Found]
        assert highest_seq(reader(padded), 0, len(padded), SEGMENT_ID) == 4


def test_the_highest_number_of_headers_whole_or_cut() -> None:
    data, ends = batches(10, 20, 30)
    assert highest_seq(reader(data), 0, 0, SEGMENT_ID) == 0
    assert highest_seq(reader(data), 0, len(data), SEGMENT_ID) == 3
    assert highest_seq(reader(data[: ends[1] + HEADER_BYTES]), ends[0], ends[1] + HEADER_BYTES, SEGMENT_ID) == 3
    assert highest_seq(reader(data[: ends[1] + HEADER_BYTES - 1]), ends[0], ends[1] + HEADER_BYTES - 1, SEGMENT_ID) == 2
    assert highest_seq(reader(bytearray(MAGIC_BYTES * 100)), 0, 400, SEGMENT_ID) == 0


def test_find_tells_damage_from_the_wanted_number_on() -> None:
    data, ends = batches(10, 20, 30, 40)
    data[ends[0] - 1] ^= 1
    data[ends[2] - 1] ^= 1
    result = find(reader(data), 0, len(data), SEGMENT_ID, 1, 2, 1 << 20)
    assert result is not None
    found, damages = result
    assert found is not None
    assert (found.first_seq, damages) == (2, [])
    result = find(reader(data), ends[1], len(data), SEGMENT_ID, 3, 3, 1 << 20)
    assert result is not None
    found, damages = result
    assert found is not None
    assert found.first_seq == 4
    assert [(damage.first_seq, damage.last_seq) for damage in damages] == [(3, 3)]
    assert find(reader(data), 0, len(data), SEGMENT_ID, 1, 9, 1 << 20) == (None, [])


def test_errors_other_than_a_bad_sector_are_not_hidden(tmp_path: Path) -> None:
    class Failing(SystemFiles):
        code = errno.ESTALE
        large_only = False

        def read(self, fd: int, size_bytes: int, position: int) -> bytes:
            if size_bytes > 4096 and self.large_only:
                raise OSError(errno.EIO, "Input/output error")
            raise OSError(self.code, "an error")

    files = Failing()
    (tmp_path / "f").write_bytes(bytes(10_000))
    fd = files.open(tmp_path / "f")
    read = careful_read(files, fd)
    with pytest.raises(OSError, match="an error"):
        read(0, 100)
    files.large_only = True
    with pytest.raises(OSError, match="an error"):
        read(0, 10_000)
    files.code = errno.EIO
    assert read(0, 10_000) == bytes(10_000)
    assert read(9_990, 100) == bytes(10)
    files.close(fd)


def test_a_magic_number_too_near_to_the_end_is_no_batch() -> None:
    data, ends = batches(10, 20)
    content = data[: ends[0]] + bytes(50) + MAGIC_BYTES + bytes(20)
    items = list(walk(reader(content), 0, len(content), SEGMENT_ID, 1))
    assert [type(item) for item in items] == [Found, Damage]

"""Every bit of a segment flipped, every length of a torn tail (reliability rows 3, 6, 7, 20; plan D3, D4).

A flipped bit is found each time, costs the batch that it hits and no other, and each reader is told once. A tail that
is cut anywhere, or goes on with zeros, garbage or a copy of earlier bytes, never costs a whole batch.
"""

from __future__ import annotations

import os
import random
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.files.descriptors import Handles
from engine.formats.batch_header import HEADER_BYTES as BATCH_HEADER_BYTES
from engine.formats.batch_header import read_header
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.segments.damage import Damage, Found, walk
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import SET_ASIDE, Recovered, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from tests.damage import UnsyncedFiles
from tests.disks import memory_directory
from tests.engine_log import EngineLog, segments

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
FLIPPED_BYTES = (256 if NIGHTLY else 8) << 10
TAIL_BYTES = (1024 if NIGHTLY else 64) << 10
TAIL_STEP = 1 if NIGHTLY else 61
SMALL_BATCHES_BYTES = 256 << 10
"""A megabyte of small batches would take ten times as long to open, a million times."""
OPENED_FLIPS = 1000 if NIGHTLY else 60


class Batches:
    """The batches of a segment file: where each ends, and its last number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        self.segment_id = parse_header(self.data, path).segment_id
        self.ends: list[int] = []
        self.last_seqs: list[int] = []
        position = HEADER_BYTES
        while (header := read_header(self.data, position, self.segment_id, position)) is not None:
            position = header.end
            self.ends.append(position)
            self.last_seqs.append(header.last_seq)

    def hit_by(self, byte: int) -> int:
        return next(at for at, end in enumerate(self.ends) if byte < end)

    def numbers(self, at: int) -> tuple[int, int]:
        return (self.last_seqs[at - 1] if at else 0) + 1, self.last_seqs[at]


def make(path: Path, size_bytes: int, seed: int = 7) -> Path:
    """A directory with one active segment of that size, of batches of different kinds and sizes: small ones first."""
    dice = random.Random(seed)
    with EngineLog(path) as engine:
        partition = engine.partition()
        number = 0
        while partition.committed_end < size_bytes:
            count = dice.choice((1, 1, 2, 7, 30))
            sizes = (0, 5, 40, 200) if partition.committed_end < SMALL_BATCHES_BYTES else (40, 2000, 8000)
            values = [b"%d" % (number + k) + dice.randbytes(dice.choice(sizes)) for k in range(count)]
            number += count
            if dice.random() < 0.3:
                engine.append(values, keys=[b"k"] * count, headers=[(b"n", b"v")] * count)
            else:
                engine.append(values)
    return path


def test_every_bit_is_under_a_checksum_and_costs_its_own_batch(tmp_path: Path) -> None:
    batches = Batches(segments(make(tmp_path / "d", FLIPPED_BYTES))[0])
    content = bytearray(batches.data)
    size = len(content)
    assert size >= FLIPPED_BYTES
    whole = [batches.numbers(at) for at in range(len(batches.ends))]

    def read(position: int, size_bytes: int) -> bytes:
        return bytes(content[position : position + size_bytes])

    for at, end in enumerate(batches.ends):
        start = batches.ends[at - 1] if at else HEADER_BYTES
        first, last = whole[at]
        rest = whole[:at] + whole[at + 1 :]
        for bit in range(start * 8, end * 8):
            content[bit // 8] ^= 1 << bit % 8
            items = list(walk(read, HEADER_BYTES, size, batches.segment_id, 1))
            content[bit // 8] ^= 1 << bit % 8
            (damage,) = (item for item in items if isinstance(item, Damage))
            assert (damage.position, damage.end) == (start, end)
            assert damage.first_seq == first
            # Of the last batch of a file nothing tells the number but its own header.
            known = at + 1 < len(whole) or bit >= (start + BATCH_HEADER_BYTES) * 8
            assert damage.last_seq == (last if known else first - 1)
            found = [(item.first_seq, item.last_seq) for item in items if isinstance(item, Found)]
            assert _covers(found, rest)


def _covers(found: list[tuple[int, int]], batches: list[tuple[int, int]]) -> bool:
    """Whether runs of batches hold exactly these (numbers have no gaps here)."""
    held = sum(last - first + 1 for first, last in found)
    return held == sum(last - first + 1 for first, last in batches)


def test_flipped_bits_through_the_engine_are_told_once_to_each_reader(tmp_path: Path) -> None:
    image = make(tmp_path / "image", FLIPPED_BYTES)
    batches = Batches(segments(image)[0])
    everything = set(range(1, batches.last_seqs[-1] + 1))
    dice = random.Random(11)
    for _ in range(OPENED_FLIPS):
        bit = dice.randrange(HEADER_BYTES * 8, len(batches.data) * 8)
        path = tmp_path / "d"
        shutil.copytree(image, path)
        content = bytearray(batches.data)
        content[bit // 8] ^= 1 << bit % 8
        segments(path)[0].write_bytes(content)
        first, last = batches.numbers(batches.hit_by(bit // 8))
        with EngineLog(path) as engine:
            for _reader in range(2):
                assert {record.seq for record in engine.read()} == everything - set(range(first, last + 1))
                assert engine.lost == [(first, last)]
            assert engine.log.figures.damaged_batches <= 1, "the operator is told once"
            engine.append([b"next"])
            assert engine.partition().last_seq == batches.last_seqs[-1] + 1
        shutil.rmtree(path)


# --- torn tails


def recover(path: Path) -> Recovered:
    files = UnsyncedFiles()
    handles = Handles(files, 16)
    try:
        return recover_partition(files, handles, PartitionLocation(path, 1, 0, 1), RecoveryHints(), 0)
    finally:
        handles.close()


def test_a_tail_torn_at_any_byte_is_seen_to_be_torn(tmp_path: Path) -> None:
    """Each length of the whole tail, as the walk of recovery sees it."""
    batches = Batches(segments(make(tmp_path / "d", TAIL_BYTES))[0])

    def read(position: int, size_bytes: int) -> bytes:
        return batches.data[position : position + size_bytes]

    torn = 0
    for at, end in enumerate(batches.ends):
        start = batches.ends[at - 1] if at else HEADER_BYTES
        first = batches.numbers(at)[0]
        for size in range(start + 1, end):
            (damage,) = walk(read, start, size, batches.segment_id, first)
            assert isinstance(damage, Damage)
            assert (damage.position, damage.end, damage.last_seq) == (start, size, first - 1)
            torn += 1
        (whole,) = walk(read, start, end, batches.segment_id, first)
        assert isinstance(whole, Found)
        assert (whole.first_seq, whole.last_seq) == batches.numbers(at)
    print(f"{torn} lengths of a torn tail of {len(batches.data)} bytes, {len(batches.ends)} batches")


def lengths(batches: Batches) -> Iterator[int]:
    """Where the tail is torn: everywhere in the last batches, here and there before."""
    size = len(batches.data)
    yield from range(max(HEADER_BYTES, size - 4096), size + 1)
    yield from range(max(HEADER_BYTES, size - TAIL_BYTES), size, TAIL_STEP)


def in_common(one: bytes, other: bytes) -> int:
    """Bytes with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: thousands of files are made and removed."""
    path = memory_directory(tmp_path)
    yield path
    if path != tmp_path:
        shutil.rmtree(path)


@pytest.mark.parametrize("fill", ["nothing", "zeros", "garbage", "a copy"])
@pytest.mark.timeout(7200 if NIGHTLY else 120)
def test_a_tail_torn_at_every_byte_keeps_all_whole_batches(in_memory: Path, fill: str) -> None:
    path = make(in_memory / "d", TAIL_BYTES)
    file = segments(path)[0]
    batches = Batches(file)
    dice = random.Random(5)
    step = 1 if fill == "nothing" else 7  # the other kinds meet the same code but for what follows
    os.truncate(file, HEADER_BYTES)
    begun = HEADER_BYTES
    opened = 0
    for size in sorted(set(lengths(batches)))[::step]:
        extra = dice.randint(1, 4096)
        tail = {
            "nothing": b"",
            "zeros": bytes(extra),
            "garbage": dice.randbytes(extra),
            "a copy": batches.data[size - extra : size] if size > extra else b"",
        }[fill]
        alike = in_common(tail, batches.data[size : size + extra])
        whole = bisect_right(batches.ends, size + alike) - 1  # what repeats itself may go on as it should
        end = batches.ends[whole] if whole >= 0 else HEADER_BYTES
        with file.open("r+b") as out:  # the last opening left all whole batches before `begun`
            begun = min(begun, size)
            out.truncate(begun)
            out.seek(begun)
            out.write(batches.data[begun:size] + tail)
        recovered = recover(path)
        last_seq = batches.last_seqs[whole] if whole >= 0 else 0
        assert (recovered.active.position, recovered.committed_seq) == (end, last_seq)
        assert recovered.report.set_aside_bytes == size + len(tail) - end
        assert file.read_bytes() == batches.data[:end]
        begun = end
        shutil.rmtree(path / SET_ASIDE, ignore_errors=True)
        opened += 1
    print(f"{opened} lengths of a torn tail of {len(batches.data)} bytes with {fill} behind it opened")


def test_reading_may_begin_at_any_byte(tmp_path: Path) -> None:
    """Row 19 (nsqd#1514): a position that is no beginning of a batch costs at most that batch, and is told."""
    batches = Batches(segments(make(tmp_path / "d", 8 << 10))[0])

    def read(position: int, size_bytes: int) -> bytes:
        return batches.data[position : position + size_bytes]

    for start in range(HEADER_BYTES, len(batches.data)):
        items = list(walk(read, start, len(batches.data), batches.segment_id, 1))
        found = [item for item in items if isinstance(item, Found)]
        at = batches.hit_by(start)
        is_beginning = start == (batches.ends[at - 1] if at else HEADER_BYTES)
        first = at if is_beginning else at + 1
        assert len(items) - len(found) == (not is_beginning)
        if first < len(batches.ends):
            assert (found[0].first_seq, found[-1].last_seq) == (batches.numbers(first)[0], batches.last_seqs[-1])

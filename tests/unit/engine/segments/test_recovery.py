"""Opening after a crash: torn tails, garbage, flipped bits, missing and foreign files."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import DataDirectoryError
from engine.formats.batch import verify
from engine.formats.batch_header import HEADER_BYTES as BATCH_HEADER_BYTES
from engine.formats.batch_header import read_header
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.segments.recovery import SET_ASIDE
from tests.engine_log import EngineLog, segments

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"


def batch_ends(path: Path) -> list[tuple[int, int]]:
    """(end position, last number) of each batch of a segment file."""
    data = path.read_bytes()
    segment_id = parse_header(data, path).segment_id
    ends = []
    position = HEADER_BYTES
    while (header := read_header(data, position, segment_id, position)) is not None:
        position = header.end
        ends.append((position, header.last_seq))
    return ends


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a kill -9 leaves it: 40 rounds of 1 to 12 records, all acknowledged."""
    base = tmp_path_factory.mktemp("recovery")
    dice = random.Random(7)
    with EngineLog(base / "d") as engine:
        n = 0
        for _ in range(40):
            count = dice.randint(1, 12)
            engine.append([b"%d" % (n + k) + b"." * dice.randint(0, 40) for k in range(count)])
            n += count
        return engine.image(base / "image")


def opened_copy(image: Path, target: Path, *, watermarks: bool = True) -> EngineLog:
    if not target.exists():
        shutil.copytree(image, target)
    if not watermarks:
        (target / "watermarks").unlink(missing_ok=True)
    return EngineLog(target)


def test_an_image_of_a_running_log_opens_whole(image: Path, tmp_path: Path) -> None:
    ends = batch_ends(segments(image)[0])
    with opened_copy(image, tmp_path / "d") as engine:
        assert [record.seq for record in engine.read()] == list(range(1, ends[-1][1] + 1))
        assert engine.partition().last_seq == ends[-1][1]
    assert not (tmp_path / "d" / SET_ASIDE).exists()


def test_truncated_at_every_byte_of_the_last_4_kib_every_whole_batch_is_found(image: Path) -> None:
    path = segments(image)[0]
    data = path.read_bytes()
    segment_id = parse_header(data, path).segment_id
    ends = [HEADER_BYTES] + [end for end, _ in batch_ends(path)]
    for size in range(max(HEADER_BYTES, len(data) - 4096), len(data) + 1):
        end, _, _ = verify(data[:size], HEADER_BYTES, size, segment_id, HEADER_BYTES)
        assert end == max(whole for whole in ends if whole <= size)


def test_truncations_as_full_opens_without_watermarks(image: Path, tmp_path: Path) -> None:
    path = segments(image)[0]
    data = path.read_bytes()
    ends = batch_ends(path)
    sizes = random.Random(3).sample(range(HEADER_BYTES, len(data)), 1000 if NIGHTLY else 60)
    for number, size in enumerate(sizes):
        target = tmp_path / str(number)
        shutil.copytree(image, target)
        segments(target)[0].write_bytes(data[:size])
        last = max((seq for end, seq in ends if end <= size), default=0)
        cut_at, cut_seq = next((end, seq) for end, seq in [(HEADER_BYTES, 0), *ends] if seq == last)
        whole_header = size - cut_at >= BATCH_HEADER_BYTES
        next_seq = (next(seq for end, seq in ends if end > size) if whole_header else cut_seq) + 1
        with opened_copy(image, target, watermarks=False) as engine:
            assert [record.seq for record in engine.read()] == list(range(1, last + 1))
            engine.append([b"next"])
            assert engine.partition().last_seq == next_seq, "no number that was acknowledged is given again"
        with EngineLog(target) as engine:
            assert len(engine.read()) == last + 1
        shutil.rmtree(target)


@pytest.mark.parametrize("kind", ["zeros", "garbage", "a copy of the last batches"])
def test_tails_that_are_no_batches_are_set_aside(image: Path, tmp_path: Path, kind: str) -> None:
    path = segments(image)[0]
    data = path.read_bytes()
    last = batch_ends(path)[-1][1]
    dice = random.Random(11)
    for size in (1, 7, 87, 88, 89, 500, 4096):
        target = tmp_path / str(size)
        shutil.copytree(image, target)
        tail = {"zeros": bytes(size), "garbage": dice.randbytes(size)}.get(kind, data[-size:])
        segments(target)[0].write_bytes(data + tail)
        with opened_copy(image, target) as engine:
            assert engine.partition().last_seq == last
            assert len(engine.read()) == last
            engine.append([b"next"])
            assert engine.values()[-1] == b"next"
        kept = list((target / SET_ASIDE).iterdir())
        assert [file.read_bytes() for file in kept] == [tail]


def test_a_flipped_bit_below_the_floor_costs_its_batch_and_nothing_else(image: Path, tmp_path: Path) -> None:
    path = segments(image)[0]
    data = path.read_bytes()
    ends = batch_ends(path)
    dice = random.Random(5)
    everything = set(range(1, ends[-1][1] + 1))
    for number in range(40):
        bit = dice.randrange(HEADER_BYTES * 8, len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        target = tmp_path / str(number)
        shutil.copytree(image, target)
        segments(target)[0].write_bytes(damaged)
        hit = next(index for index, (end, _) in enumerate(ends) if bit // 8 < end)
        first = ends[hit - 1][1] + 1 if hit else 1
        gone = set(range(first, ends[hit][1] + 1))
        with opened_copy(image, target) as engine:
            assert {record.seq for record in engine.read()} == everything - gone
            if hit < len(ends) - 1:
                assert engine.lost == [(first, ends[hit][1])]
                assert engine.log.figures.damaged_batches == 1
                engine.read()
                assert engine.log.figures.damaged_batches == 1, "told once"
            engine.append([b"next"])
            assert engine.partition().last_seq == ends[-1][1] + 1
        shutil.rmtree(target)


def test_damage_above_the_floor_ends_the_log_and_is_kept(image: Path, tmp_path: Path) -> None:
    """Without watermarks only durable marks tell what was committed: here, all but the last batch."""
    path = segments(image)[0]
    data = bytearray(path.read_bytes())
    ends = batch_ends(path)
    data[ends[-2][0] + 3] ^= 1
    shutil.copytree(image, tmp_path / "d")
    segments(tmp_path / "d")[0].write_bytes(data)
    with opened_copy(image, tmp_path / "d", watermarks=False) as engine:
        assert engine.partition().last_seq == ends[-2][1]
    (kept,) = (tmp_path / "d" / SET_ASIDE).iterdir()
    assert kept.read_bytes() == bytes(data[ends[-2][0] :])


def test_files_that_do_not_belong_are_renamed_never_removed(image: Path, tmp_path: Path) -> None:
    shutil.copytree(image, tmp_path / "d")
    directory = segments(tmp_path / "d")[0].parent
    foreign = directory / "00000000000000999999.log"
    foreign.write_bytes(b"not a segment" * 100)
    (directory / "notes.txt").write_text("left alone")
    with EngineLog(tmp_path / "d") as engine:
        assert engine.read()
    assert (directory / "00000000000000999999.log.damaged").read_bytes() == b"not a segment" * 100
    assert (directory / "notes.txt").exists()


def test_missing_segments_take_the_partition_offline_and_say_so(image: Path, tmp_path: Path) -> None:
    shutil.copytree(image, tmp_path / "d")
    segments(tmp_path / "d")[0].unlink()
    with EngineLog(tmp_path / "d") as engine:
        with pytest.raises(DataDirectoryError, match="no segment files, but records 1 to"):
            engine.partition()
        engine.append([b"others work"], topic="other")


def test_a_crash_between_sealing_and_the_next_segment(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=64 << 10)
    with EngineLog(tmp_path / "d", topic=config) as engine:
        for first in range(5):
            engine.append([b"%d" % first * 100] * 200)
    last = segments(tmp_path / "d")[-1]
    with EngineLog(tmp_path / "d", topic=config) as engine:
        engine.read()
        active = engine.partition().active_segment
        count = engine.partition().last_seq
        active.seal(engine.log.files, engine.log.handles)
        engine.image(tmp_path / "crashed")
        active.position = last.stat().st_size  # so that closing leaves the file as it is
    with EngineLog(tmp_path / "crashed", topic=config) as engine:
        assert engine.partition().last_seq == count
        engine.append([b"next"])
        assert [record.seq for record in engine.read()] == list(range(1, count + 2))


def test_a_damaged_footer_is_rebuilt_from_the_batches(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=64 << 10)
    with EngineLog(tmp_path / "d", topic=config) as engine:
        for first in range(5):
            engine.append([b"%d" % first * 100] * 500)
    sealed = segments(tmp_path / "d")[0]
    data = bytearray(sealed.read_bytes())
    for position in (len(data) - 10, len(data) - 60):
        damaged = bytearray(data)
        damaged[position] ^= 1
        sealed.write_bytes(damaged)
        with EngineLog(tmp_path / "d", topic=config) as engine:
            assert [record.seq for record in engine.read()] == list(range(1, 2501))

"""Opening when files are gone, are empty, or belong elsewhere."""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

import pytest

from engine.errors import OutOfRange
from engine.files.descriptors import Handles
from engine.files.system import SystemFiles
from engine.formats.batch import records
from engine.formats.record import Record
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.limits import SEQ_RESERVATION
from engine.partitions.partition import Partition
from engine.reader import DirectoryReader, Loss
from engine.segments.active import create_segment, new_header
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import make_partition, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from tests.crash.world import Life
from tests.damage import UnsyncedFiles, make, mark_of, read_beside, recover
from tests.engine_log import SMALL, EngineLog, segments
from tests.simulated_files import LoseAll, SimulatedFiles, disk_with


def test_a_missing_last_segment_is_told_and_its_numbers_are_not_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path / "d")
    first = parse_header(segments(path)[-1].read_bytes(), segments(path)[-1]).first_seq
    segments(path)[-1].unlink()
    with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, first))
        assert engine.lost == [(first, 120)]
        engine.append([b"next"])
        assert engine.partition().last_seq == 121
    assert f"ACKNOWLEDGED records {first} to 120 are lost" in caplog.text
    with EngineLog(path, topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == [*range(1, first), 121]
        assert engine.lost == [(first, 120)]
    assert read_beside(path) == ([*range(1, first), 121], [(first, 120)])


def test_a_missing_first_segment_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make(tmp_path / "d")
    segments(path)[0].unlink()
    first = int(segments(path)[0].stem)
    with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL) as engine:
        assert engine.partition().log_start == first
        with pytest.raises(OutOfRange):
            engine.partition().read(1, 1000, None)
        assert [record.seq for record in engine.read()] == list(range(first, 121))
    assert f"ACKNOWLEDGED records 1 to {first - 1} are lost: their segment files are missing" in caplog.text


def test_an_empty_segment_that_a_failed_roll_left_is_no_part_of_the_log(tmp_path: Path) -> None:
    """A power cut may bring back the file of a roll that failed, while the segment before it went on."""
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1", b"2"])
        active = engine.partition().active_segment
        leftover = active.path.with_name("00000000000000000003.log")
        header = parse_header(active.path.read_bytes(), active.path)
        engine.append([b"3", b"4", b"5"])
    fields = (header.topic_id, header.partition, header.number, 3, 12345, header.created_ms)
    leftover.write_bytes(type(header)(*fields).pack())
    (path / "watermarks").unlink()
    with EngineLog(path) as engine:
        assert [record.seq for record in engine.read()] == [1, 2, 3, 4, 5]
        engine.append([b"6"])
        assert [record.seq for record in engine.read()] == [1, 2, 3, 4, 5, 6]
    assert [file.name for file in segments(path)] == ["00000000000000000001.log"]


def test_a_gap_before_an_empty_segment_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1", b"2"])
        partition = engine.partition()
        partition.last_seq = 10  # as after publishes that failed
        engine.log.committer.roll_next(partition)
        engine.append([b"11"])
        partition.last_seq = 20
        engine.log.committer.roll_next(partition)
        engine.log.committer.request_watermark(partition)
        engine.inbox.run_until(lambda: len(partition.sealed) == 2)
    for _ in range(2):
        with EngineLog(path) as engine:
            assert [record.seq for record in engine.read()] == [1, 2, 11]
            assert engine.lost == []
            assert engine.partition().read(engine.partition().committed_seq + 1, 1000, None) is None


def test_a_gap_before_an_empty_segment_in_the_middle_is_no_loss(tmp_path: Path) -> None:
    """A roll whose first write failed, and a crash, can leave one between others."""
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1", b"2"])
        partition = engine.partition()
        partition.last_seq = 10  # as after publishes that failed
        engine.log.committer.roll_next(partition)
        engine.append([b"11"])
        header = new_header(partition.topic.id, 0, partition.number, 4, engine.log.now_ms())
    files = SystemFiles()
    handles = Handles(files, 4)
    create_segment(files, handles, segments(path)[0].parent, header)
    handles.close()
    with EngineLog(path) as engine:
        partition = engine.partition()
        assert [(one.first_seq, one.last_seq) for one in partition.sealed] == [(1, 2), (4, 3)]
        for start in (1, 3, 4, 7):
            assert [record.seq for record in engine.read(start=start)][-1:] == [11]
            assert engine.lost == []


@pytest.mark.parametrize("apart", [False, True], ids=["append", "transaction"])
def test_numbers_that_were_reserved_for_nothing_are_no_loss(tmp_path: Path, apart: bool) -> None:
    """A power cut took all records of the only segment; the first one behind the reserved numbers is damaged."""
    files = disk_with(tmp_path)
    life = Life(tmp_path, random.Random(1), files, {})
    life.put(life.partition(b"never"), b"gone")
    life.settle()
    life = after_power_cut(life)
    partition = life.partition(b"never")
    first = partition.last_seq + 1
    assert first >= SEQ_RESERVATION
    assert (partition.log_start, partition.committed_seq) == (1, 0)
    life.log.committer.roll_next(partition)
    life.log.committer.request_watermark(partition)  # a round without records, to no avail
    life.settle()
    if apart:
        transaction = life.log.transaction()
        transaction.append(partition, b"0")
        transaction.commit(lambda error: None)
        life.settle()
    for number in range(apart, 3):
        life.put(partition, b"%d" % number)
        life.settle()
    life.close()
    assert [segment.last_seq for segment in partition.sealed] == [0]
    damage_first_batch(life.files, partition.active_segment.path)
    reader = DirectoryReader(tmp_path, life.files)
    beside = reader.partition(reader.topic(b"never"))
    life = Life(tmp_path, random.Random(1), life.files, life.state.durable)
    partition = life.partition(b"never")
    assert partition.log_start == 1, "a reader that waited for the first record is not told that anything was removed"
    lost, seqs = told(life, partition)
    assert lost == [(first, first)]
    assert seqs == [first + 1, first + 2]
    items = list(beside.records(1, first + 10))
    assert [(item.damage.first_seq, item.damage.last_seq) for item in items if isinstance(item, Loss)] == lost
    assert [item.seq for item in items if isinstance(item, Record)] == seqs
    life.close()


def test_numbers_that_were_reserved_for_records_that_a_power_cut_took_are_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice the only record of a segment behind reserved numbers was not synced: none of it is known to readers."""
    life = Life(tmp_path, random.Random(1), disk_with(tmp_path), {})
    life.put(life.partition(b"never"), b"kept")
    life.settle()
    life = after_kill(life)
    firsts = []
    for _ in range(2):
        firsts.append(life.partition(b"never").last_seq + 1)
        life.put(life.partition(b"never"), b"gone")
        life.settle()
        life = after_power_cut(life)
        partition = life.partition(b"never")
        assert told(life, partition) == ([], [1])
        assert partition.committed_seq == 1
    assert firsts[0] > SEQ_RESERVATION
    assert firsts[1] > firsts[0] + SEQ_RESERVATION // 2
    assert [(segment.first_seq, segment.records) for segment in partition.sealed] == [(1, 1), (firsts[0], 0)]
    life.log.committer.request_watermark(partition)
    life.settle()
    life.close()
    life = Life(tmp_path, random.Random(1), life.files, life.state.durable)
    partition = life.partition(b"never")
    first = partition.last_seq + 1
    life.put(partition, b"stays")
    life.settle()
    assert told(life, partition) == ([], [1, first])
    assert "were acknowledged" not in caplog.text
    life.close()


def test_damage_to_all_of_a_segment_takes_no_numbers_that_were_left_out_before_it(tmp_path: Path) -> None:
    life = Life(tmp_path, random.Random(1), disk_with(tmp_path), {})
    life.put(life.partition(b"never"), b"1")
    life.settle()
    life = after_kill(life)
    partition = life.partition(b"never")
    first = partition.last_seq + 1
    for value in (b"damaged", b"whole"):
        life.put(partition, value)
        life.settle()
        life.log.committer.roll_next(partition)
    life.close()
    assert [segment.first_seq for segment in partition.sealed] == [1, first]
    damage_first_batch(life.files, partition.sealed[1].path)
    life = Life(tmp_path, random.Random(1), life.files, life.state.durable)
    assert told(life, life.partition(b"never")) == ([(first, first)], [1, first + 1])
    life.close()


def after_kill(life: Life) -> Life:
    """The next life, which finds what the kernel knew."""
    files, state = life.files.after_kill(), dict(life.state.durable)
    life.close()
    return Life(life.path, random.Random(1), files, state)


def after_power_cut(life: Life) -> Life:
    """The next life, of which nothing is left that was not synced."""
    files, state = life.files.after_power_cut(LoseAll()), dict(life.state.durable)
    life.close()
    return Life(life.path, random.Random(1), files, state)


def damage_first_batch(files: SimulatedFiles, path: Path) -> None:
    fd = files.open(path)
    changed = files.read(fd, 1, HEADER_BYTES + 30)[0] ^ 1
    files.write(fd, [bytes([changed])], HEADER_BYTES + 30)


def told(life: Life, partition: Partition) -> tuple[list[tuple[int, int]], list[int]]:
    """(what a reader is told to be lost, numbers that it gets)."""
    lost: list[tuple[int, int]] = []
    seqs: list[int] = []
    seq = partition.log_start
    while seq <= partition.committed_seq:
        ready: list[bool] = []
        read_batch = partition.read(seq, 1 << 20, lambda ready=ready: ready.append(True))  # type: ignore[misc]
        if read_batch is None:
            life.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
            continue
        lost += read_batch.lost
        seqs += [record.seq for record in records(read_batch.buffer, 0, len(read_batch.buffer), seq)]
        seq = read_batch.last_seq + 1
    return lost, seqs


def test_files_set_aside_replace_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    foreign = segments(path)[0].parent / "00000000000000000999.log"
    for content in (b"first" * 100, b"second" * 100):
        foreign.write_bytes(content)
        with EngineLog(path, topic=SMALL) as engine:
            assert len(engine.read()) == 120
    kept = sorted(file.read_bytes() for file in foreign.parent.glob("*.damaged*"))
    assert kept == [b"first" * 100, b"second" * 100]


def test_a_directory_named_like_a_segment_is_left_alone(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    (segments(path)[0].parent / "00000000000000000999.log").mkdir()
    with EngineLog(path, topic=SMALL) as engine:
        assert len(engine.read()) == 120
    assert (segments(path)[0].parent / "00000000000000000999.log").is_dir()


def test_sound_segments_of_another_place_are_renamed(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    with EngineLog(path) as engine:
        engine.append([b"another topic's"], topic="other")
    directory = segments(path)[0].parent
    shutil.copy(segments(path, 2)[0], directory / "00000000000000000900.log")
    shutil.copy(segments(path)[0], directory / "00000000000000000901.log")
    recovered = recover(path, mark_of(path))
    assert recovered.committed_seq == 120
    assert sum("renamed to" in note for note in recovered.report.notes) == 2
    assert any("belongs to topic 2" in note for note in recovered.report.notes)
    assert any("its header says first number 1" in note for note in recovered.report.notes)


def test_an_empty_active_segment_takes_the_new_number_of_its_partition(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        engine.log.committer.roll_next(partition)
        engine.log.committer.request_watermark(partition)
        engine.inbox.run_until(lambda: bool(partition.sealed))
    active = segments(path)[-1]
    assert parse_header(active.read_bytes(), active).number == 1
    files = UnsyncedFiles()
    handles = Handles(files, 16)
    recovered = recover_partition(files, handles, PartitionLocation(path, 1, 0, 7), RecoveryHints(), 0)
    handles.close()
    assert recovered.active.path == active
    assert parse_header(active.read_bytes(), active).number == 7
    assert recovered.next_seq == 2


def test_a_segment_of_a_killed_process_is_on_disk_before_it_is_used(tmp_path: Path) -> None:
    """Its header was written and not synced: records of a durability below always could be on disk without it."""
    files = disk_with(tmp_path)
    location = PartitionLocation(tmp_path, 1, 0, 1)
    files.make_dir(tmp_path / "topics")
    files.make_dir(location.topic_directory)
    for directory in (tmp_path, tmp_path / "topics"):
        files.sync_dir(directory)
    killed: list[SimulatedFiles] = []

    def kill(call: str, path: Path) -> None:
        if call == "sync_data":
            killed.append(files.after_kill())

    files.hook = kill
    handles = Handles(files, 4)
    make_partition(files, handles, location, 0)
    handles.close()
    (left,) = killed
    left.sync_dir(location.topic_directory)  # the file worker does
    handles = Handles(left, 4)
    active = recover_partition(left, handles, location, RecoveryHints(), 0).active
    handles.close()
    cut = left.after_power_cut(LoseAll())
    handles = Handles(cut, 4)
    again = recover_partition(cut, handles, location, RecoveryHints(), 0).active
    handles.close()
    assert again.header == active.header

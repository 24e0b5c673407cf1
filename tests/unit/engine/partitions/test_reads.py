"""Reading: who waits is called once, answers of reader threads are kept until picked up, errors pass on and pass."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import EngineError
from engine.partitions import reads as reading
from engine.partitions.partition import Partition
from engine.partitions.tail_cache import NO_TAIL
from engine.segments.batches import ReadBatch
from tests.engine_log import EngineLog, segments
from tests.hooked_files import ColdFiles

SMALL = TopicConfig(segment_bytes=64 << 10)


def filled(path: Path, rounds: int = 30) -> Path:
    with EngineLog(path, topic=SMALL) as engine:
        for number in range(rounds):
            engine.append([b"%d" % number + b"." * 5000])
    return path


def fetch(engine: EngineLog, partition: Partition, seq: int, count: int = 1) -> tuple[ReadBatch | None, int]:
    """Reads for so many readers of one number; the read batch, and how many of them were called."""
    called: list[int] = []
    callbacks = [lambda at=at: called.append(at) for at in range(count)]  # type: ignore[misc]
    for callback in callbacks:
        assert partition.read(seq, 1000, callback) is None
        assert partition.read(seq, 1000, callback) is None, "asking again does not make it two calls"
    engine.inbox.run_until(lambda: bool(called))
    engine.inbox.run_pending()
    return partition.read(seq, 1000, None), len(called)


def test_all_who_wait_for_a_number_are_called_once_and_get_one_answer(tmp_path: Path) -> None:
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=ColdFiles()) as engine:
        partition = engine.partition()
        read_batch, called = fetch(engine, partition, 5, 3)
        assert called == 3
        assert sum(engine.log.figures.read_seconds["disk"].counts) == 1
        assert sum(engine.log.figures.read_seconds["cache"].counts) == 0
        assert read_batch is not None
        assert read_batch.first_seq == 5
        assert partition.read(5, 1000, None) is read_batch, "kept for those who come later"
        assert partition.read(6, 1000, None) is None, "without a callback nothing is fetched"
        assert not partition.read_state.waiting


def failing() -> None:
    raise RuntimeError("a defect")


def test_who_fails_when_called_costs_no_other_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=ColdFiles()) as engine:
        called: list[str] = []
        partition = engine.log.partition(engine.log.catalog.get_or_create(b"t"))
        for callback in (failing, lambda: called.append("open")):
            partition.when_open(callback)
        engine.inbox.run_until(lambda: partition.is_open)
        for callback in (failing, lambda: called.append("read")):
            assert partition.read(5, 1000, callback) is None
        engine.inbox.run_until(lambda: not partition.read_state.waiting)
        wanted = partition.committed_seq + 1
        for name in ("committed", "committed, too"):
            assert partition.read(wanted, 1000, lambda: failing()) is None
            assert partition.read(wanted, 1000, lambda name=name: called.append(name)) is None  # type: ignore[misc]
        partition.append([b"x"])
        engine.inbox.run_until(lambda: len(called) == 4)
        assert called == ["open", "read", "committed", "committed, too"]
        assert partition.read(partition.committed_seq + 1, 1000, lambda: called.append("again")) is None
        engine.append([b"y"])
        engine.inbox.run_until(lambda: called[-1] == "again")
    assert caplog.text.count("RuntimeError: a defect") == 4


def test_a_defect_in_a_reader_thread_is_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ColdFiles()
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=files) as engine:
        partition = engine.partition()
        files.read = failing_read  # type: ignore[method-assign]
        called: list[int] = []
        with caplog.at_level(logging.CRITICAL):
            assert partition.read(5, 1000, lambda: called.append(1)) is None
            engine.inbox.run_until(lambda: bool(called))
        with pytest.raises(EngineError, match="MemoryError"):
            partition.read(5, 1000, None)
        del files.read
        assert fetch(engine, partition, 5)[0] is not None


def failing_read(fd: int, size_bytes: int, position: int) -> bytes:
    raise MemoryError


def test_a_wish_may_be_withdrawn(tmp_path: Path) -> None:
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=ColdFiles()) as engine:
        partition = engine.partition()
        called: list[str] = []
        stays, goes = (lambda: called.append("stays")), (lambda: called.append("goes"))
        assert partition.read(5, 1000, goes) is None
        assert partition.read(5, 1000, stays) is None
        assert partition.read(7, 1000, stays) is None
        partition.forget(goes)
        engine.inbox.run_until(lambda: len(called) == 2)
        assert called == ["stays", "stays"]


def test_answers_nobody_picks_up_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FETCHED_MAX", 4)
    monkeypatch.setattr(reading, "POSITION_HINTS_MAX", 5)
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=ColdFiles()) as engine:
        partition = engine.partition()
        for seq in range(1, 20):
            assert fetch(engine, partition, seq)[0] is not None
        assert len(engine.log.parts.fetched) == 4
        assert len(partition.read_state._hints) <= 5


def test_an_error_of_the_disk_is_told_to_who_reads_and_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ColdFiles()
    with EngineLog(filled(tmp_path / "d"), topic=SMALL, files=files) as engine:
        partition = engine.partition()
        files.code = errno.ESTALE
        called: list[bool] = []
        with caplog.at_level(logging.ERROR):
            assert partition.read(5, 1000, lambda: called.append(True)) is None
            engine.inbox.run_until(lambda: bool(called))
        assert "cannot read" in caplog.text
        with pytest.raises(EngineError, match="cannot read"):
            partition.read(5, 1000, None)
        files.code = 0
        assert fetch(engine, partition, 5)[0] is not None, "the next attempt is made anew"


def test_a_file_that_vanished_is_an_error_not_the_end(tmp_path: Path) -> None:
    path = filled(tmp_path / "d")
    with EngineLog(path, topic=SMALL, tail_cache_bytes=1 << 20) as engine:
        partition = engine.partition()
        segments(path)[0].unlink()
        engine.log.handles.forget(segments(path)[0].with_name("00000000000000000001.log"))
        called: list[bool] = []
        assert partition.read(1, 1000, lambda: called.append(True)) is None
        engine.inbox.run_until(lambda: bool(called))
        with pytest.raises(EngineError, match="No such file"):
            partition.read(1, 1000, None)
        assert engine.read(start=partition.last_seq)


def test_a_footer_that_went_bad_while_the_log_is_open_costs_a_walk(tmp_path: Path) -> None:
    path = filled(tmp_path / "d")
    with EngineLog(path, topic=SMALL) as engine:
        partition = engine.partition()
        engine.log.index.drop(partition.number)
        file = partition.sealed[0].path
        content = bytearray(file.read_bytes())
        content[-60] ^= 1
        file.write_bytes(content)
        middle = partition.sealed[0].last_seq - 1
        assert engine.read(start=middle)[0].seq == middle
        file.write_bytes(content[: partition.sealed[0].end])
        partition.sealed[0].footer = None
        partition.read_state._hints.clear()
        assert partition.sealed[0].read_footer(engine.log.files, engine.log.handles) is None


def test_damage_is_told_to_the_operator_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path / "d")
    file = segments(path)[0]
    content = bytearray(file.read_bytes())
    content[6000] ^= 1
    file.write_bytes(content)
    with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL) as engine:
        for _ in range(3):
            engine.log.parts.fetched.clear()
            engine.read()
            assert len(engine.lost) == 1
        assert engine.log.figures.damaged_batches == 1
        ((first, last),) = engine.lost
        assert engine.log.figures.damaged_records == last - first + 1
    assert caplog.text.count("readers go on behind it") == 1


def test_bytes_between_batches_that_took_no_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        active = partition.active_segment
        with engine.log.handles.use(active.path) as fd:
            engine.log.files.write(fd, [b"garbage"], active.position)
        active.position += 7
        engine.append([b"2"])
        partition.tail = NO_TAIL
        engine.log.parts.tail_cache._tails.clear()
        with caplog.at_level(logging.ERROR):
            assert engine.values() == [b"1", b"2"]
        assert engine.lost == []
    assert "no known records" in caplog.text


def test_reading_a_closed_partition_opens_it(tmp_path: Path) -> None:
    path = filled(tmp_path / "d")
    with EngineLog(path, topic=SMALL) as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        assert repr(partition) == "<Partition topic 't' partition 0>"
        assert partition.read(1, 1000, None) is None
        assert not partition.is_open
        ready: list[bool] = []
        assert partition.read(1, 1000, lambda: ready.append(True)) is None
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(True))
        engine.inbox.run_until(lambda: bool(opened))
        assert ready == [True]
        assert partition.read(1, 1000, None) is not None
    for file in segments(path):
        file.unlink()
    with EngineLog(path, topic=SMALL) as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        assert partition.read(1, 1000, lambda: None) is None
        engine.inbox.run_until(lambda: partition.error is not None)
        with pytest.raises(EngineError, match="no segment files"):
            partition.read(1, 1000, None)


def test_places_that_readers_came_to_are_remembered_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POSITION_HINTS_MAX", 2)
    monkeypatch.setattr(reading, "READ_BYTES_MIN", 4096)
    with EngineLog(filled(tmp_path / "d"), topic=SMALL) as engine:
        partition = engine.partition()
        most = 0
        for seq in range(1, 31):
            engine.read(start=seq, max_bytes=1)
            most = max(most, len(partition.read_state._hints))
        assert most == 2
        assert [record.seq for record in engine.read(max_bytes=1)] == list(range(1, 31))


def test_a_footer_that_is_in_memory_tells_where_to_look(tmp_path: Path) -> None:
    with EngineLog(filled(tmp_path / "d"), topic=SMALL) as engine:
        partition = engine.partition()
        for segment in partition.sealed:
            segment.footer = segment.read_footer(engine.log.files, engine.log.handles)
            assert segment.footer is not None
        assert [record.seq for record in engine.read(start=9)] == list(range(9, 31))


def test_a_place_in_another_segment_is_no_place_in_this_one(tmp_path: Path) -> None:
    with EngineLog(filled(tmp_path / "d"), topic=SMALL) as engine:
        partition = engine.partition()
        for seq in range(1, 31):
            partition.read_state._hints[seq] = (4711, 1 << 40)
        assert [record.seq for record in engine.read()] == list(range(1, 31))

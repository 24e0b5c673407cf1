"""Commit rounds at the edges: defects, files that cannot be made, written or taken back, segments that are begun."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from engine.commit import round_steps
from engine.commit.rolling import segment_age_ms, segment_bytes
from engine.config import TopicConfig
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly
from engine.files.system import SystemFiles
from engine.formats.segment import HEADER_BYTES
from engine.limits import SEGMENT_BYTES_MIN
from engine.partitions.partition import Partition
from engine.partitions.tail_cache import NO_TAIL
from engine.segments.active import ActiveSegment
from engine.segments.batches import COMMITTED, FAILED
from tests.engine_log import SMALL, EngineLog, fill
from tests.hooked_files import HookedFiles, held


def test_a_defect_in_a_round_makes_its_partitions_read_only_and_hangs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        engine.append([b"1"], topic="other")

        def broken(self: ActiveSegment, *_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
            patch.setattr(ActiveSegment, "seal_at_tail", broken)
            write_batch = engine.settle(engine.partition().append([b"2"]))
        assert isinstance(write_batch.error, ReadOnly)
        assert "internal error in a commit round" in str(write_batch.error)
        assert "a defect" in caplog.text
        engine.append([b"2"], topic="other")
        assert engine.values() == [b"1"]


def test_a_segment_whose_sync_failed_in_between_takes_no_round(tmp_path: Path) -> None:
    """Housekeeping's sync fails while a round is on its way: the round may not write to that file any more."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        partition.active_segment.sync_failed = True
        write_batch = engine.settle(partition.append([b"2"]))
        assert isinstance(write_batch.error, ReadOnly)
        assert "an earlier sync failed" in str(write_batch.error)
        assert engine.values() == [b"1"]


def test_a_round_that_begins_a_segment_and_cannot_write_into_it(tmp_path: Path) -> None:
    """The old segment is sealed, the new one is the end of the log: there it goes on."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        writes: list[Path] = []

        def hook(call: str, path: Path) -> None:
            if call == "write" and path.name == "00000000000000000011.log":
                writes.append(path)
                if len(writes) == 2:  # the first one is its header
                    raise OSError(errno.ENOSPC, "No space left on device")

        files.hook = hook
        write_batch = engine.settle(partition.append([b"x" * 40_000]))
        assert write_batch.state == FAILED
        assert isinstance(write_batch.error, DiskFull)
        assert [segment.first_seq for segment in partition.sealed] == [1]
        assert partition.committed_end == HEADER_BYTES
        engine.append([b"y"])
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]


def test_files_that_are_made_when_nothing_waits_for_them_any_more(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        with held(files, "create", ".log") as reached:
            write_batch = partition.append([b"x"])
            engine.inbox.run_until(reached.is_set)
            partition._fail_pending(NotStored("refused meanwhile"))
        engine.settle(write_batch)
        engine.inbox.run_until(lambda: partition.has_files)
        engine.append([b"y"])
        assert engine.values() == [b"y"]


def test_a_write_that_cannot_be_taken_back_makes_the_partition_read_only(tmp_path: Path) -> None:
    class Failing(SystemFiles):
        broken = False

        def write(self, fd: int, buffers: Any, position: int) -> None:
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            super().write(fd, buffers, position)

        def truncate(self, fd: int, size_bytes: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    files = Failing()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"1"])
        files.broken = True
        write_batch = engine.settle(engine.partition().append([b"2"]))
        files.broken = False
        assert isinstance(write_batch.error, ReadOnly)
        assert "could not be taken back" in str(write_batch.error)


def test_rounds_that_nobody_scrapes_are_only_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_steps, "ROUND_SIZES_MAX", 3)
    with EngineLog(tmp_path / "d") as engine:
        for _ in range(6):
            engine.append([b"x"])
        counters = engine.log.committer.counters
        assert len(counters.round_sizes) == 3
        assert counters.records == 6


def test_segments_are_a_quarter_of_what_is_kept_at_most() -> None:
    assert segment_bytes(TopicConfig()) == 128 << 20
    assert segment_bytes(TopicConfig(retention_bytes=100 << 20)) == 25 << 20
    assert segment_bytes(TopicConfig(retention_bytes=1)) == SEGMENT_BYTES_MIN
    assert segment_age_ms(TopicConfig()) == 7 * 86_400_000
    assert segment_age_ms(TopicConfig(retention_ms=3_600_000)) == 900_000
    assert segment_age_ms(TopicConfig(retention_ms=1000)) == 1000


def test_retention_by_bytes_keeps_about_what_it_says(tmp_path: Path) -> None:
    config = TopicConfig(retention_bytes=512 << 10)
    with EngineLog(tmp_path / "d", topic=config, retention_grace_ms=0) as engine:
        partition = engine.partition()
        for _ in range(100):
            engine.append([b"x" * 20_000])
        engine.log.housekeeping.clean()
        kept = partition.committed_end + sum(segment.size_bytes for segment in partition.sealed)
        assert 256 << 10 < kept <= 512 << 10
        assert partition.apply_retention(engine.log.context.steady_ms()) == 0


def test_a_defect_behind_a_round_stops_that_partition_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those who wait are told, of what is stored or not; rounds go on."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"], topic="other")
        partition = engine.partition()
        partition.append([b"1"])
        partition.tail = None  # type: ignore[assignment]
        with caplog.at_level(logging.CRITICAL):
            write_batches = [partition.append([b"2"]), engine.partition("other").append([b"2"])]
            for write_batch in write_batches:
                engine.settle(write_batch)
        assert "internal error in commit round" in caplog.text
        assert [write_batch.state for write_batch in write_batches] == [COMMITTED, COMMITTED], (
            "it was behind the writing"
        )
        with pytest.raises(ReadOnly):
            partition.append([b"3"])
        engine.append([b"3"], topic="other")
        assert not engine.log.context.backlog.write_batches
        partition.tail = NO_TAIL
    with EngineLog(tmp_path / "d") as engine:
        assert engine.values() == [b"1", b"2"]


def test_a_defect_in_front_of_a_round_stops_that_partition_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partitions = [engine.partition(), engine.partition("other")]
        for partition in partitions:
            engine.settle(partition.append([b"1"]))
        may_commit = Partition.may_commit

        def broken(self: Partition) -> bool:
            if self is partitions[0]:
                raise RuntimeError("a defect")
            return may_commit(self)

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "may_commit", broken)
            write_batches = [partition.append([b"2"]) for partition in partitions]
            for write_batch in write_batches:
                engine.settle(write_batch)
        assert isinstance(write_batches[0].error, ReadOnly)
        assert write_batches[1].state == COMMITTED
        assert not engine.log.context.backlog.write_batches


@pytest.mark.parametrize("behind_it", ["records", "a transaction"])
def test_a_defect_in_front_of_a_round_that_fails_a_transaction_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_it: str
) -> None:
    """What stood behind the transaction goes on, though a round is being gathered when that fails."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, round_files_max=1) as engine:
        broken, behind, beside = partitions = [engine.partition(name) for name in ("broken", "behind", "beside")]
        for partition in partitions:
            engine.settle(partition.append([b"1"]))
        may_commit = Partition.may_commit

        def breaks(self: Partition) -> bool:
            if self is broken:
                raise RuntimeError("a defect")
            return may_commit(self)

        outcomes: list[EngineError | None] = []

        def transact(*wanted: Partition) -> None:
            transaction = engine.log.transaction()
            for partition in wanted:
                transaction.append(partition, b"together")
            transaction.commit(outcomes.append)

        with held(files, "write", ".log") as reached:
            write_batches = [beside.append([b"2"])]
            engine.inbox.run_until(reached.is_set)
            write_batches.append(broken.append([b"2"]))
            transact(broken, behind)
            if behind_it == "records":
                write_batches += [beside.append([b"3"]), behind.append([b"2"])]
            else:
                transact(behind)
            monkeypatch.setattr(Partition, "may_commit", breaks)
        for write_batch in write_batches:
            engine.settle(write_batch)
        others = [] if behind_it == "records" else [None]
        engine.inbox.run_until(lambda: len(outcomes) == 1 + len(others))
        assert isinstance(outcomes[0], ReadOnly)
        assert outcomes[1:] == others
        assert [write_batch.state == COMMITTED for write_batch in write_batches] == [
            write_batch.partition is not broken for write_batch in write_batches
        ]
        for partition in (behind, beside):
            assert engine.settle(partition.append([b"4"])).state == COMMITTED

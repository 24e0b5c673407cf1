"""Producers that number their records: what is stored once, what is refused, what is known after a restart."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import NotStored
from engine.formats.extension import SEQUENCE_MASK, Producer
from engine.limits import PRODUCER_KEEP_MS, PRODUCER_RUNS_MAX, PRODUCERS_MAX
from engine.partitions.producers import OldEpoch, Plan, SequenceGap
from engine.segments.batches import COMMITTED, FAILED, WriteBatch
from engine.segments.producers import Run, StoredProducers, unpacked
from tests.engine_log import EngineLog, segments
from tests.hooked_files import HookedFiles

TIME = 1_700_000_000_000


@pytest.fixture
def files() -> HookedFiles:
    return HookedFiles()


@pytest.fixture
def log(tmp_path: Path, files: HookedFiles) -> Iterator[EngineLog]:
    with EngineLog(tmp_path, files=files) as opened:
        opened.append([b"first"])
        yield opened


def put(log: EngineLog, producer: Producer, count: int, place: int = 0) -> WriteBatch:
    """Appends records of a producer."""
    partition = log.partition()
    made = producer._replace(first_sequence=producer.first_sequence + place & SEQUENCE_MASK)
    writer = partition.writer(10 * count)
    writer.produce(*made)
    first_seq = writer.next_seq
    for index in range(count):
        value = b"%d" % (made.first_sequence + index)
        assert writer.put(value, 0, len(value))
    write_batch = partition.appended(None, count)
    partition.producers.appended(made, count, first_seq, write_batch)
    return write_batch


def send(log: EngineLog, producer: Producer, count: int) -> tuple[Plan, list[WriteBatch]]:
    """Appends what is not there yet."""
    plan = log.partition().producers.plan(producer, count)
    return plan, [put(log, producer, stop - start, start) for start, stop in plan.missing]


def stored(log: EngineLog, producer: Producer, count: int) -> Plan:
    plan, write_batches = send(log, producer, count)
    for write_batch in write_batches:
        assert log.settle(write_batch).state == COMMITTED
    return plan


@contextmanager
def failing_at_the_end(files: HookedFiles) -> Iterator[None]:
    """The next write of records waits until the block ends, and fails."""
    go_on = threading.Event()

    def hook(made: str, path: Path) -> None:
        if made == "write" and path.suffix == ".log":
            files.hook = lambda call, path: None
            assert go_on.wait(30)
            raise OSError(errno.ENOSPC, "full")

    files.hook = hook
    try:
        yield
    finally:
        go_on.set()


def test_records_are_stored_once(log: EngineLog) -> None:
    one = Producer(1, 0, 5)
    assert stored(log, one, 3).missing == [(0, 3)]
    assert stored(log, one, 3) == Plan(base_seq=2)
    assert stored(log, Producer(1, 0, 8), 2).missing == [(0, 2)]
    assert stored(log, Producer(1, 0, 6), 4) == Plan(base_seq=3)
    assert stored(log, Producer(1, 0, 9), 3) == Plan(base_seq=6, missing=[(1, 3)])  # of which one is there
    for first in (4, 13, 1000):
        with pytest.raises(SequenceGap, match="12 is expected"):
            stored(log, Producer(1, 0, first), 1)
    assert log.values()[1:] == [b"5", b"6", b"7", b"8", b"9", b"10", b"11"]


def test_what_is_on_its_way_is_not_appended_again(log: EngineLog) -> None:
    one = Producer(1, 0, 0)
    _, (first,) = send(log, one, 3)
    _, (second,) = send(log, Producer(1, 0, 3), 3)
    assert log.partition().producers.plan(one, 3) == Plan(base_seq=2, waiting=[first])
    assert log.partition().producers.plan(Producer(1, 0, 2), 6).missing == [(4, 6)]
    log.settle(second)
    assert log.partition().producers.plan(one, 3) == Plan(base_seq=2)


def test_a_write_batch_that_stays_in_memory_keeps_nothing_of_producers(log: EngineLog) -> None:
    _, (write_batch,) = send(log, Producer(1, 0, 0), 3)
    assert write_batch.produced
    assert log.settle(write_batch).state == COMMITTED
    assert not write_batch.produced


def test_after_the_largest_count_comes_0(log: EngineLog) -> None:
    top = Producer(1, 0, SEQUENCE_MASK - 1)
    assert stored(log, top, 4).missing == [(0, 4)]  # -2, -1, 0, 1
    assert stored(log, Producer(1, 0, 0), 2) == Plan(base_seq=4)
    assert stored(log, top, 4) == Plan(base_seq=2)
    assert stored(log, Producer(1, 0, 2), 1).missing == [(0, 1)]
    with pytest.raises(SequenceGap):
        stored(log, Producer(1, 0, SEQUENCE_MASK - 2), 1)


def test_epochs(log: EngineLog) -> None:
    with pytest.raises(OldEpoch):
        stored(log, Producer(1, -1, 0), 1)
    stored(log, Producer(1, 3, 7), 1)
    with pytest.raises(OldEpoch):
        stored(log, Producer(1, 2, 8), 1)
    with pytest.raises(SequenceGap, match="not 0"):
        stored(log, Producer(1, 4, 8), 1)
    _, (waiting,) = send(log, Producer(1, 4, 0), 2)
    with pytest.raises(OldEpoch):
        stored(log, Producer(1, 3, 7), 1)
    log.settle(waiting)
    assert stored(log, Producer(1, 4, 1), 2) == Plan(base_seq=4, missing=[(1, 2)])
    with pytest.raises(OldEpoch):
        stored(log, Producer(1, 3, 7), 1)


def test_two_epochs_on_their_way_before_there_are_files(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as new:
        send(new, Producer(1, 0, 0), 1)
        _, (second,) = send(new, Producer(1, 1, 0), 2)
        plan = new.partition().producers.plan(Producer(1, 1, 1), 2)
        assert plan == Plan(base_seq=3, missing=[(1, 2)], waiting=[second])
        assert new.settle(second).state == COMMITTED
        assert stored(new, Producer(1, 1, 1), 1) == Plan(base_seq=3)


@pytest.mark.parametrize("known", [False, True])
def test_what_a_failed_round_left_out_is_stored_when_it_comes_again(
    log: EngineLog, files: HookedFiles, known: bool
) -> None:
    if known:
        stored(log, Producer(1, 0, 0), 10)
    first = Producer(1, 0, 10)
    files.failing_once("write", ".log", errno.ENOSPC)
    _, (failed,) = send(log, first, 3)
    log.settle(failed)
    assert failed.state == FAILED
    for behind in (Producer(1, 0, 13), Producer(1, 0, 15)):  # on their way when it failed: they come again, too
        with pytest.raises(NotStored, match="send them first"):
            stored(log, behind, 2)
    with pytest.raises(SequenceGap):
        stored(log, Producer(1, 0, 18), 2)
    assert stored(log, first, 3).missing == [(0, 3)]
    assert stored(log, first, 3).missing == []
    with pytest.raises(SequenceGap):
        stored(log, Producer(1, 0, 9 if not known else SEQUENCE_MASK), 1)


def test_what_follows_a_failed_round_is_not_stored_before_it(log: EngineLog, files: HookedFiles) -> None:
    """Also where the one behind has been appended already; who numbers nothing goes on."""
    stored(log, Producer(1, 0, 0), 2)
    told: list[str] = []

    class Told:
        def round_done(self) -> None:
            told.append("told")

    with failing_at_the_end(files):
        _, (failed,) = send(log, Producer(1, 0, 2), 2)
        _, (second,) = send(log, Producer(1, 0, 4), 2)
        second.waiters.append(Told())
        log.partition().writer(len(second.buffer))  # the next one is a write batch of its own
        other = log.partition().append([b"other"])
    log.settle(failed)
    log.settle(other)
    log.inbox.run_until(lambda: bool(told))
    assert (failed.state, second.state, other.state) == (FAILED, FAILED, COMMITTED)
    with pytest.raises(NotStored):
        stored(log, Producer(1, 0, 4), 2)
    stored(log, Producer(1, 0, 2), 2)
    stored(log, Producer(1, 0, 4), 2)
    assert log.values()[1:] == [b"0", b"1", b"other", b"2", b"3", b"4", b"5"]


def test_a_new_epoch_whose_first_records_fail(log: EngineLog, files: HookedFiles) -> None:
    stored(log, Producer(1, 0, 0), 2)
    files.failing_once("write", ".log", errno.ENOSPC)
    _, (failed,) = send(log, Producer(1, 1, 0), 2)
    log.settle(failed)
    with pytest.raises(NotStored):
        stored(log, Producer(1, 1, 2), 2)
    with pytest.raises(OldEpoch):
        stored(log, Producer(1, 0, 2), 1)
    stored(log, Producer(1, 1, 0), 2)
    stored(log, Producer(1, 1, 2), 2)
    assert log.values()[1:] == [b"0", b"1", b"0", b"1", b"2", b"3"]


# --- the table


def test_runs_are_joined_and_the_oldest_forgotten() -> None:
    table = StoredProducers()
    for index in range(5):
        table.note(Producer(1, 0, 10 * index), 10, 100 + 10 * index, TIME)
    found = table.get(1, TIME)
    assert found is not None
    assert found.runs == [Run(0, 50, 100)]
    for index in range(PRODUCER_RUNS_MAX):
        table.note(Producer(1, 0, 50 + index), 1, 200 + 2 * index, TIME)
    assert (found.runs[0], len(found.runs), found.floor) == (Run(50, 51, 200), PRODUCER_RUNS_MAX, 50)
    table.missed(Producer(1, 0, 0), 1, TIME)  # too late: something older is forgotten
    assert found.floor == 50


def test_a_long_run_is_not_joined_beyond_what_counts_can_tell() -> None:
    table = StoredProducers()
    half = (SEQUENCE_MASK + 1) // 2
    for index in range(4):
        table.note(Producer(1, 0, index * (half - 1) & SEQUENCE_MASK), half - 1, 1 + index * (half - 1), TIME)
    found = table.get(1, TIME)
    assert found is not None
    assert all(run.end - run.first < half for run in found.runs)
    assert found.next == 4 * (half - 1)


def test_who_is_silent_for_a_day_is_forgotten() -> None:
    table = StoredProducers()
    table.note(Producer(1, 5, 7), 1, 1, TIME)
    assert table.get(1, TIME + PRODUCER_KEEP_MS) is not None
    assert table.get(1, TIME + PRODUCER_KEEP_MS + 1) is None
    assert table.packed(TIME + PRODUCER_KEEP_MS + 1) == b""
    table.note(Producer(1, 0, 3), 1, 2, TIME + PRODUCER_KEEP_MS + 1)  # begins anew
    found = table.get(1, TIME + PRODUCER_KEEP_MS + 1)
    assert found is not None
    assert (found.epoch, found.floor, found.next) == (0, 3, 4)


def test_of_too_many_the_most_silent_is_forgotten() -> None:
    table = StoredProducers()
    for id_ in range(PRODUCERS_MAX):
        table.note(Producer(id_, 0, 0), 1, 1 + id_, TIME)
    table.note(Producer(0, 0, 1), 1, PRODUCERS_MAX + 1, TIME)
    table.note(Producer(PRODUCERS_MAX, 0, 0), 1, PRODUCERS_MAX + 2, TIME)
    table.missed(Producer(PRODUCERS_MAX + 1, 0, 0), 1, TIME)
    assert len(table) == PRODUCERS_MAX
    assert [table.get(id_, TIME) is None for id_ in (0, 1, 2, 3)] == [False, True, True, False]


def test_a_footer_keeps_all_of_it() -> None:
    table = StoredProducers()
    for index in range(30):
        table.note(Producer(index % 3, 1, 7 * index & SEQUENCE_MASK), 2, 1 + 3 * index, TIME + index)
    again = unpacked(table.packed(TIME + 30))
    assert [again.get(id_, TIME) for id_ in range(3)] == [table.get(id_, TIME) for id_ in range(3)]
    assert again.packed(TIME + 30) == table.packed(TIME + 30)
    assert unpacked(b"").packed(TIME) == b""


# --- restarts


@pytest.mark.parametrize("footer", ["whole", "gone"])
def test_a_producer_is_known_after_its_segment_was_sealed(tmp_path: Path, footer: str) -> None:
    config = TopicConfig(segment_bytes=64 << 10)
    with EngineLog(tmp_path, topic=config) as log:
        stored(log, Producer(1, 0, 0), 300)
        for _ in range(4):
            log.append([b"." * 4000] * 10)
        assert log.partition().sealed
    if footer == "gone":
        path = segments(tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-20])
    with EngineLog(tmp_path, topic=config) as log:
        assert stored(log, Producer(1, 0, 0), 300) == Plan(base_seq=1)
        assert stored(log, Producer(1, 0, 299), 2) == Plan(base_seq=300, missing=[(1, 2)])

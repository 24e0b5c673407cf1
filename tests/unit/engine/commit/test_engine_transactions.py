"""Transactions: all or nothing, in order, bounded; what makes one impossible is told at once."""

from __future__ import annotations

import errno
import functools
import time
from pathlib import Path

import pytest

from engine.commit.transactions import Transaction
from engine.config import TopicConfig
from engine.errors import Corrupt, EngineError, NotStored, ReadOnly, TooLarge
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.limits import STATE_VALUE_BYTES_MAX, TRANSACTION_BYTES_MAX
from engine.state.markers import Markers, is_committed, read_markers
from engine.state.store import Put
from tests.engine_log import EngineLog
from tests.hooked_files import HookedFiles
from tests.simulated_state import SimulatedState


def commit(engine: EngineLog, transaction: Transaction) -> EngineError | None:
    outcome: list[EngineError | None] = []
    transaction.commit(outcome.append)
    engine.inbox.run_until(lambda: bool(outcome))
    return outcome[0]


def test_records_of_several_partitions_become_visible_together(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        for number in range(600):
            transaction.append(engine.partition("ab"[number % 2]), b"%d" % number, key=b"k", headers=(b"n", b"v"))
        assert engine.partition("a").last_seq == 0, "nothing has a number before the commit"
        assert transaction.partitions == (engine.partition("a"), engine.partition("b"))
        assert not transaction.is_pending
        assert not transaction.is_committed
        outcome: list[EngineError | None] = []
        transaction.commit(outcome.append)
        assert transaction.is_pending
        engine.inbox.run_until(lambda: bool(outcome))
        assert outcome == [None]
        assert transaction.is_committed
        assert engine.values("a") == [b"%d" % number for number in range(0, 600, 2)]
        first = engine.read("b")[0]
        assert (first.key, first.value, first.headers) == (b"k", b"1", (b"n", b"v"))
        assert engine.log.pending_bytes == 0


def test_records_of_all_sizes_stand_behind_what_was_published_meanwhile(tmp_path: Path) -> None:
    sizes = [0, 1, 100, 3000, 70_000, 600_000, 5, 2_000_000, 1] + [40] * 30_000
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        for number, size in enumerate(sizes):
            headers = (b"n", b"%d" % number) if number % 1000 < 10 else ()
            transaction.append(engine.partition(), b"%d" % (number % 10) * size, headers=headers, timestamp_ms=number)
        engine.append([b"before"])
        assert commit(engine, transaction) is None
        engine.append([b"behind"])
        found = engine.read()
    with EngineLog(tmp_path / "d") as engine:
        assert engine.read() == found, "as it was"
    assert [record.seq for record in found] == list(range(1, len(sizes) + 3))
    assert [record.value for record in (found[0], found[-1])] == [b"before", b"behind"]
    for number, (size, record) in enumerate(zip(sizes, found[1:-1], strict=True)):
        assert (len(record.value), record.timestamp_ms) == (size, number)
        assert record.headers == ((b"n", b"%d" % number) if number % 1000 < 10 else ())


def test_records_that_are_put_by_the_writer_of_a_partition(tmp_path: Path) -> None:
    sizes = [1, 100, 700_000, 3, 70_000, 600_000, 5]
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        transaction.writer(engine.partition(), 0)  # which has no room for what comes
        for number, size in enumerate(sizes):
            assert transaction.writer(engine.partition(), size).put_record(b"%d" % number * size, b"", 1, ())
            transaction.added(engine.partition(), size)
        assert transaction.size_bytes == sum(sizes)
        assert commit(engine, transaction) is None
        assert engine.values() == [b"%d" % number * size for number, size in enumerate(sizes)]
        engine.partition().stop_writing(ReadOnly("the disk failed"))
        with pytest.raises(ReadOnly):
            engine.log.transaction().writer(engine.partition(), 0)


def test_what_is_too_much_for_the_state_fails_its_transaction_alone(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        transaction.append(engine.partition(), b"none of it")
        transaction.also = (Put(b"zz/large", bytes(STATE_VALUE_BYTES_MAX)),)
        assert isinstance(commit(engine, transaction), NotStored)
        transaction = engine.log.transaction()
        transaction.append(engine.partition(), b"the next one")
        assert commit(engine, transaction) is None
        assert engine.values() == [b"the next one"]


def test_a_commit_takes_no_time_for_each_record(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        started = time.thread_time()
        for _ in range(200_000):
            transaction.append(engine.partition(), b"x")
        appending_s = time.thread_time() - started
        outcome: list[EngineError | None] = []
        started = time.thread_time()
        transaction.commit(outcome.append)
        assert time.thread_time() - started < appending_s / 10
        engine.inbox.run_until(lambda: bool(outcome))


def test_one_batch_needs_no_marker(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        small = engine.log.transaction()
        small.append(engine.partition(), b"x")
        assert commit(engine, small) is None
        assert small.id == 0
        large = engine.log.transaction()
        for _ in range(300):
            large.append(engine.partition(), b"x")
        assert commit(engine, large) is None
        assert large.id != 0, "two batches: a crash could leave one"


def test_an_empty_one_and_one_that_is_rolled_back_leave_nothing(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        assert commit(engine, engine.log.transaction()) is None
        transaction = engine.log.transaction()
        transaction.append(engine.partition(), b"x")
        transaction.rollback()
        assert transaction.size_bytes == 0
        assert commit(engine, transaction) is None
        assert engine.partition().last_seq == 0


def test_what_is_too_large_is_refused_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineLog(tmp_path / "d", topic=TopicConfig(record_bytes_max=100)) as engine:
        transaction = engine.log.transaction()
        with pytest.raises(TooLarge) as refused:
            transaction.append(engine.partition(), b"x" * 90, key=b"k" * 5, headers=(b"123", b"456"))
        assert refused.value.limit_bytes == 100
        transaction.append(engine.partition(), b"x" * 90)
        monkeypatch.setattr("engine.commit.transactions.TRANSACTION_BYTES_MAX", 300)
        with pytest.raises(TooLarge, match="a transaction holds up to 300 bytes"):
            transaction.append(engine.partition(), b"x" * 90)
        assert commit(engine, transaction) is None
        assert engine.values() == [b"x" * 90]
    assert TRANSACTION_BYTES_MAX == 64 << 20


def test_more_partitions_than_a_round_may_have_open_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.commit.transactions.TRANSACTION_PARTITIONS_MAX", 2)
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        for topic in "aab":
            transaction.append(engine.partition(topic), b"1")
        assert not transaction.has_room(engine.partition("c"), 1)
        with pytest.raises(TooLarge, match="a transaction holds up to 2 partitions"):
            transaction.append(engine.partition("c"), b"1")
        transaction.append(engine.partition("b"), b"2")
        assert commit(engine, transaction) is None
        assert (engine.values("a"), engine.values("b"), engine.values("c")) == ([b"1", b"1"], [b"1", b"2"], [])


def test_a_partition_that_takes_nothing_fails_the_whole(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"], topic="a")
        engine.append([b"1"], topic="b")
        transaction = engine.log.transaction()
        transaction.append(engine.partition("a"), b"x")
        transaction.append(engine.partition("b"), b"x")
        engine.partition("b").stop_writing(ReadOnly("the disk failed"))
        with pytest.raises(ReadOnly):
            transaction.append(engine.partition("b"), b"y")
        assert isinstance(commit(engine, transaction), ReadOnly)
        assert engine.values("a") == [b"1"]
    with EngineLog(tmp_path / "d") as engine:
        topic = engine.log.catalog.get(b"a")
        assert topic is not None
        transaction = engine.log.transaction()
        transaction.append(engine.log.partition(topic), b"x")
        error = commit(engine, transaction)
        assert isinstance(error, NotStored)
        assert "is not open" in str(error)


def test_the_files_of_new_partitions_are_made_first(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        transaction = engine.log.transaction()
        for topic in ("new 1", "new 2"):
            transaction.append(engine.partition(topic), b"x")
        assert commit(engine, transaction) is None
        assert engine.values("new 1") == engine.values("new 2") == [b"x"]


def test_one_behind_one_that_fails_before_its_turn_is_committed(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"1"], topic="b")
        outcomes: dict[str, EngineError | None] = {}
        files.failing("create", ".log")
        for topic in ("no files", "b"):
            transaction = engine.log.transaction()
            transaction.append(engine.partition(topic), b"x")
            transaction.commit(functools.partial(outcomes.__setitem__, topic))
        engine.inbox.run_until(lambda: len(outcomes) == 2)
        assert isinstance(outcomes["no files"], NotStored)
        assert outcomes["b"] is None
        assert engine.values("b") == [b"1", b"x"]


def test_an_epoch_ends_when_its_numbers_are_used_up() -> None:
    markers = Markers(SimulatedState())
    first = markers.next_id()
    markers._next = 1 << 32
    second = markers.next_id()
    assert first >> 32 != second >> 32
    assert second & 0xFFFF_FFFF == 1


def test_markers_that_are_refused_do_not_count() -> None:
    state = SimulatedState()
    markers = Markers(state)
    identity = markers.next_id()
    told: list[EngineError | None] = []
    markers.commit(identity, told.append)
    state.round(error=NotStored("refused"))
    state.answer()
    assert isinstance(told[0], NotStored)
    assert not markers.is_committed(identity)
    markers.commit(identity, told.append)
    state.run()
    assert markers.is_committed(identity)
    assert Markers(state).is_committed(identity)


def test_a_damaged_environment_without_a_key_counts_nothing() -> None:
    class Damaged(SimulatedState):
        def scan(self, prefix, on_corrupt=None):  # type: ignore[no-untyped-def]
            on_corrupt(Corrupt("state", None, "a page"))
            return iter([(b"x/\0\0\0\1", 5)])

    damaged: list[Corrupt] = []
    committed = read_markers(Damaged(), damaged)
    assert len(damaged) == 1
    assert is_committed(committed, 1 << 32 | 5)
    assert not is_committed(committed, 1 << 32 | 6)
    assert Put(b"x", 1).key == b"x"


@pytest.mark.parametrize("call", ["write", "sync_data"])
def test_a_file_that_fails_takes_the_others_back(tmp_path: Path, call: str) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        for topic in "abc":
            engine.append([b"1"], topic=topic)
        failing = engine.partition("b").active_segment.path
        files.failing(call, str(failing))
        transaction = engine.log.transaction()
        for topic in "abc":
            transaction.append(engine.partition(topic), b"x")
        error = commit(engine, transaction)
        assert error is not None
        assert isinstance(error, NotStored)
        assert not transaction.is_committed
        files.hook = lambda call, path: None
        engine.append([b"2"], topic="a")
        assert [(record.seq, record.value) for record in engine.read("a")] == [(1, b"1"), (3, b"2")]
        assert engine.partition("c").error is None
        engine.image(tmp_path / "killed")
    with EngineLog(tmp_path / "killed") as engine:
        assert engine.values("a") == [b"1", b"2"]
        assert engine.values("b") == engine.values("c") == [b"1"]


def test_first_records_with_a_number_of_their_own_that_fail_do_not_hide_what_comes_after_a_restart(
    tmp_path: Path,
) -> None:
    """The log began at their number, and nothing was stored: what is acknowledged later must not be below the start."""
    bundle = encode_bundle([b"x", b"y"], [b""] * 2, [1, 1])
    info = check_bundle(bundle, 0, len(bundle))
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        written: list[Path] = []

        def hook(call: str, path: Path) -> None:
            if call == "write" and path.suffix == ".log":
                written.append(path)
                if len(written) > 1:  # behind the header of the segment
                    raise OSError(errno.EIO, "no", str(path))

        files.hook = hook
        write_batch = partition.append_bundle(bundle, 0, len(bundle), info, first_seq=7)
        assert engine.settle(write_batch).error is not None
        files.hook = lambda call, path: None
    for number in range(2):
        with EngineLog(tmp_path / "d") as engine:
            transaction = engine.log.transaction()
            transaction.append(engine.partition(), b"%d" % number)
            assert commit(engine, transaction) is None
            assert engine.values() == [b"%d" % n for n in range(number + 1)]

"""Rounds by the thread without the interpreter: what is on disk, what it tells, failures, and when it is not used."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.commit.native_rounds import NativeRounds
from engine.commit.round_steps import Round
from engine.commit.round_writer import COMPILED
from engine.commit.thread_rounds import ThreadRounds
from engine.config import EngineConfig, TopicConfig
from engine.errors import NotStored, ReadOnly
from engine.files.system import SystemFiles
from engine.inbox import Inbox
from engine.limits import INLINE_BYTES_MAX, ROUND_PARTS_MAX, ROUND_PIECES_MAX
from engine.log import Log
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, FAILED, PENDING, WriteBatch
from engine.state.index import Index
from tests.engine_log import EngineLog, segments
from tests.round_files import largest_file, not_to_be_synced

pytestmark = [pytest.mark.checked, pytest.mark.skipif(not COMPILED, reason="only where it is compiled")]


def readable(*fds: int) -> Callable[..., list[int]]:
    """Gives those of the descriptors that can be read, after a time in ms at most if there is one."""
    looking = select.poll()  # unlike select() it takes any descriptor
    for fd in fds:
        looking.register(fd, select.POLLIN)
    return lambda *timeout_ms: [fd for fd, _ in looking.poll(*timeout_ms)]


class Watching:
    """Looks at descriptors for an inbox: a thread, as an event loop does it by itself."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.calls = 0

    def __call__(self, fd: int, callback: Callable[[], None]) -> Callable[[], None]:
        stop, ending = os.pipe()
        seen = threading.Event()

        def call() -> None:
            self.calls += 1
            callback()
            seen.set()

        def look() -> None:
            ended = readable(stop)
            while stop not in readable(fd, stop)():
                seen.clear()
                self.inbox.call_soon_threadsafe(call)
                while not seen.wait(0.01) and not ended(0):
                    pass

        thread = threading.Thread(target=look)
        thread.start()

        def end() -> None:
            os.close(ending)
            thread.join()
            os.close(stop)

        return end


class NativeLog(EngineLog):
    """A log whose owner can watch descriptors."""

    def __init__(self, path: Path, topic: TopicConfig | None = None, index: Index | None = None) -> None:
        self.path = path
        self.inbox = Inbox()
        self.watching = Watching(self.inbox)
        config = EngineConfig(
            topic=topic or TopicConfig(), housekeeping_interval_ms=3_600_000, round_files_max=ROUND_PARTS_MAX + 1
        )
        self.log = Log.open(path, config, self.inbox.call_soon_threadsafe, index=index, watch=self.watching)


def fail(engine: NativeLog, partition: Partition, value: bytes) -> Exception:
    write_batch = engine.settle(partition.append([value]))
    assert write_batch.state == FAILED
    assert write_batch.error is not None
    return write_batch.error


def test_records_are_the_same_after_a_restart(tmp_path: Path) -> None:
    values = [b"%d" % number * (number % 50) for number in range(3000)]
    with NativeLog(tmp_path / "log") as engine:
        for start in range(0, len(values), 100):
            engine.append(values[start : start + 100])
        assert engine.watching.calls >= 29  # the first round makes the files, and may have gone another way
        assert engine.values() == values
        counters = engine.log.committer.counters
        assert counters.records == len(values)
        assert counters.rounds >= engine.watching.calls
        mark = engine.partition().active_segment
        assert mark.durable_position == mark.position
        image = engine.image(tmp_path / "killed")
    for path in (tmp_path / "log", image):
        with EngineLog(path) as again:
            assert again.values() == values


def test_segments_roll_in_between(tmp_path: Path) -> None:
    value = os.urandom(1 << 16)
    with NativeLog(tmp_path / "log", TopicConfig(segment_bytes=1 << 20)) as engine:
        for _ in range(60):
            engine.append([value])
        assert len(segments(tmp_path / "log")) > 2
        assert engine.watching.calls > 30
        assert engine.values() == [value] * 60


@pytest.mark.parametrize("durability", ["never", "interval"])
def test_what_waits_for_no_disk_is_written_on_the_owners_thread(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TopicConfig(durability=durability, segment_bytes=1 << 20)
    usual: list[int] = []
    begin = ThreadRounds.begin
    monkeypatch.setattr(ThreadRounds, "begin", lambda self, this: usual.append(this.size_bytes) or begin(self, this))
    with NativeLog(tmp_path / "log", config) as engine:
        values = [b"%d" % number * 100 for number in range(100)]
        engine.append([b"first"])
        for value in values:
            engine.append([value])
        assert engine.watching.calls == 0
        assert usual == []
        size = segments(tmp_path / "log")[0].stat().st_size
        with largest_file(size + 50):
            assert type(fail(engine, engine.partition(), b"x" * 1000)) is NotStored
        assert segments(tmp_path / "log")[0].stat().st_size == size
        large = [b"y" * (1 + INLINE_BYTES_MAX)] * 20
        for value in large:
            engine.append([value])
        assert len(segments(tmp_path / "log")) == 2
        assert engine.watching.calls + len(usual) == len(large)
        assert engine.values() == [b"first", *values, *large]
        image = engine.image(tmp_path / "killed")
    for path in (tmp_path / "log", image):
        with EngineLog(path) as again:
            assert again.values() == [b"first", *values, *large]


def test_a_failed_write_is_taken_back_and_leaves_a_gap(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        calls = engine.watching.calls
        size = segments(tmp_path / "log")[0].stat().st_size
        with largest_file(size + 50):
            error = fail(engine, partition, b"x" * 1000)
        assert type(error) is NotStored
        assert engine.watching.calls > calls
        assert segments(tmp_path / "log")[0].stat().st_size == size
        assert engine.log.committer.counters.failed_parts == 1
        engine.append([b"behind"])
        assert [(record.seq, record.value) for record in engine.read()] == [(1, b"before"), (3, b"behind")]
    with EngineLog(tmp_path / "log") as again:
        assert again.values() == [b"before", b"behind"]


def test_after_a_failed_sync_the_partition_takes_no_more(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        with engine.log.handles.use(partition.active_segment.path) as fd:
            kept = os.dup(fd)
            with not_to_be_synced() as other:
                os.dup2(other, fd)
                error = fail(engine, partition, b"lost")
            os.dup2(kept, fd)
            os.close(kept)
        assert type(error) is ReadOnly
        assert isinstance(partition.error, ReadOnly)
        assert engine.log.committer.counters.sync_failures == 1
        assert engine.values() == [b"before"]
    with EngineLog(tmp_path / "log") as again:
        assert again.values() == [b"before"]


def test_many_small_write_batches_go_the_usual_way(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"first"])
        partition = engine.partition()
        sizes = []
        monkey = NativeRounds._is_prepared

        def is_prepared(self: NativeRounds, this: Round) -> bool:
            begun = monkey(self, this)
            sizes.append((len(this.parts[0].write_batches), begun))
            return begun

        NativeRounds._is_prepared = is_prepared  # type: ignore[method-assign]
        try:
            write_batches = [partition.append([b"y" * 3000]) for _ in range(400)]
            engine.settle(write_batches[-1])
        finally:
            NativeRounds._is_prepared = monkey  # type: ignore[method-assign]
        assert {write_batch.state for write_batch in write_batches} == {COMMITTED}
        assert all(begun == (count <= ROUND_PIECES_MAX) for count, begun in sizes)
        assert len(engine.values()) == 401


def test_without_a_way_to_watch_there_is_no_such_thread(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "log") as engine:
        assert engine.append([b"a"]).state != PENDING
        assert "quintlog-rounds" not in {thread.name for thread in threading.enumerate()}


def test_write_batches_that_cannot_be_sealed_fail_and_nobody_hangs(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        calls = engine.watching.calls
        partition.append([b"in the way"])  # its round is under way while the next write batch gathers
        write_batch = partition.append([b"spoilt"])
        partition._close_write_batch(write_batch)
        write_batch.buffer[0] ^= 1
        assert type(engine.settle(write_batch).error) is ReadOnly
        assert engine.watching.calls == calls + 1
        assert engine.values() == [b"before", b"in the way"]
        assert engine.append([b"elsewhere"], topic="other").state == COMMITTED
        assert engine.append([b"quickly"], topic="other").state == COMMITTED
        assert engine.values("other") == [b"elsewhere", b"quickly"]
        assert engine.watching.calls > calls + 1


def test_a_defect_behind_the_sync_stops_that_partition_only(tmp_path: Path) -> None:
    class Broken(Index):
        broken = False

        def add(self, *numbers: int) -> None:
            if self.broken:
                raise RuntimeError("no index")
            super().add(*numbers)

    config = EngineConfig()
    index = Broken(tmp_path / "index", SystemFiles(), config)
    with NativeLog(tmp_path / "log", index=index) as engine:
        engine.append([b"before"])
        index.broken = True
        assert type(fail(engine, engine.partition(), b"unknown")) is ReadOnly
        index.broken = False
        assert engine.append([b"elsewhere"], topic="other").state == COMMITTED


def test_a_sync_that_failed_elsewhere_is_not_forgotten(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        size = segments(tmp_path / "log")[0].stat().st_size
        with largest_file(size + 50):
            write_batch = partition.append([b"x" * 1000])
            partition.active_segment.sync_failed = True  # by housekeeping, while the round is under way
            assert type(engine.settle(write_batch).error) is ReadOnly
        assert partition.active_segment.sync_failed
        assert engine.values() == [b"before"]


def test_a_sync_of_housekeeping_that_fails_beside_a_round_fails_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two syncs at a time the kernel tells one that it failed: the quick round, whose own succeeds, waits for it."""
    reached, begun = threading.Event(), threading.Event()

    def fail_when_begun(files: SystemFiles, fd: int) -> None:
        reached.set()
        assert begun.wait(30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        path = segments(tmp_path / "log")[0]
        size = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(SystemFiles, "sync_data", fail_when_begun)
            syncing = threading.Thread(
                target=engine.log.committer.interval_syncs.sync, args=(partition, partition.active_segment)
            )
            syncing.start()
            assert reached.wait(30)
            write_batch = partition.append([b"x"])
            assert path.stat().st_size == size, "it waits before it writes"
            begun.set()
            syncing.join()
            assert type(engine.settle(write_batch).error) is ReadOnly
        assert engine.values() == [b"before"]


def test_housekeeping_leaves_a_file_to_the_round_that_syncs_it(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        write_batch = partition.append([b"x"])
        assert partition.active_segment.sync_lock.locked()
        assert not engine.log.committer.interval_syncs.sync(partition, partition.active_segment)
        assert engine.settle(write_batch).state == COMMITTED
        assert not partition.active_segment.sync_lock.locked()
        assert engine.log.committer.interval_syncs.sync(partition, partition.active_segment)


TOPICS = ("a", "b", "c", "d")


def together(engine: NativeLog, values: dict[str, bytes]) -> dict[str, WriteBatch]:
    """Appends to several topics while a round is running, so that they share the next; their write batches, settled."""
    engine.partition("before").append([b"in the way"])
    write_batches = {topic: engine.partition(topic).append([value]) for topic, value in values.items()}
    files = engine.log.committer.counters.files
    for write_batch in write_batches.values():
        engine.settle(write_batch)
    assert engine.log.committer.counters.files - files in (len(values), len(values) + 1)
    return write_batches


def begun(engine: NativeLog, *topics: str) -> None:
    for topic in ("before", *topics):
        engine.append([b"first"], topic=topic)


def test_a_round_of_several_partitions(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        for number in range(50):
            rounds, calls = engine.log.committer.counters.rounds, engine.watching.calls
            value = b"%d" % number * (number + 1)
            write_batches = together(engine, dict.fromkeys(TOPICS, value))
            assert {write_batch.state for write_batch in write_batches.values()} == {COMMITTED}
            assert engine.log.committer.counters.rounds == rounds + 2
            assert engine.watching.calls == calls + 2, "neither went the usual way"
        for topic in TOPICS:
            mark = engine.partition(topic).active_segment
            assert mark.durable_position == mark.position
        image = engine.image(tmp_path / "killed")
    expected = [b"first", *(b"%d" % number * (number + 1) for number in range(50))]
    for path in (tmp_path / "log", image):
        with EngineLog(path) as again:
            for topic in TOPICS:
                assert again.values(topic) == expected


def test_a_round_of_which_every_part_failed_is_one_failed_round(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        counters = engine.log.committer.counters
        rounds, size = counters.rounds, engine.partition("a").active_segment.path.stat().st_size
        with largest_file(size + 10):
            together(engine, dict.fromkeys(TOPICS, b"x" * 1000))
        assert counters.failed_parts > counters.rounds - rounds
        assert counters.failed_rounds == counters.rounds - rounds


def test_one_failed_write_of_several(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        size = engine.partition("c").active_segment.path.stat().st_size
        with largest_file(size + 1000):
            write_batches = together(engine, {"a": b"a", "b": b"b", "c": b"c" * 2000, "d": b"d"})
        assert type(write_batches["c"].error) is NotStored
        assert engine.partition("c").active_segment.path.stat().st_size == size
        assert [write_batches[topic].state for topic in "abd"] == [COMMITTED] * 3
        assert engine.log.committer.counters.failed_parts == 1
        together(engine, dict.fromkeys(TOPICS, b"behind"))
    with EngineLog(tmp_path / "log") as again:
        for topic in TOPICS:
            own = [] if topic == "c" else [topic.encode()]
            assert again.values(topic) == [b"first", *own, b"behind"]


def test_one_failed_sync_of_several(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        with engine.log.handles.use(engine.partition("b").active_segment.path) as fd:
            kept = os.dup(fd)
            with not_to_be_synced() as other:
                os.dup2(other, fd)
                write_batches = together(engine, dict.fromkeys(TOPICS, b"second"))
            os.dup2(kept, fd)
            os.close(kept)
        assert type(write_batches["b"].error) is ReadOnly
        assert [write_batches[topic].state for topic in "acd"] == [COMMITTED] * 3
        assert [engine.partition(topic).error is None for topic in TOPICS] == [True, False, True, True]
        assert engine.log.committer.counters.sync_failures == 1
        together(engine, dict.fromkeys("acd", b"third"))
        assert engine.values("b") == [b"first"]
    with EngineLog(tmp_path / "log") as again:
        for topic in "acd":
            assert again.values(topic) == [b"first", b"second", b"third"]
        assert again.values("b") == [b"first"]


def test_one_of_several_that_cannot_be_sealed(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        engine.partition("before").append([b"in the way"])
        write_batches = {topic: engine.partition(topic).append([b"second"]) for topic in TOPICS}
        engine.partition("c")._close_write_batch(write_batches["c"])
        write_batches["c"].buffer[0] ^= 1
        for write_batch in write_batches.values():
            engine.settle(write_batch)
        assert type(write_batches["c"].error) is ReadOnly
        assert engine.values("c") == [b"first"]
        assert [engine.values(topic) for topic in "abd"] == [[b"first", b"second"]] * 3


def test_a_defect_behind_the_sync_of_several_stops_one(tmp_path: Path) -> None:
    class Broken(Index):
        broken = 0

        def add(self, number: int, *more: int) -> None:
            if self.broken == number:
                raise RuntimeError("no index")
            super().add(number, *more)

    index = Broken(tmp_path / "index", SystemFiles(), EngineConfig())
    with NativeLog(tmp_path / "log", index=index) as engine:
        begun(engine, *TOPICS)
        index.broken = engine.partition("b").number
        write_batches = together(engine, dict.fromkeys(TOPICS, b"second"))
        assert type(write_batches["b"].error) is ReadOnly
        assert [write_batches[topic].state for topic in "acd"] == [COMMITTED] * 3


def test_more_files_than_a_native_round_takes(tmp_path: Path) -> None:
    topics = [f"t{number}" for number in range(ROUND_PARTS_MAX + 1)]
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *topics)
        for names in (topics, topics[1:]):
            calls = engine.watching.calls
            together(engine, dict.fromkeys(names, b"x"))
            assert engine.watching.calls - calls == (1 if names is topics else 2)
        assert all(engine.values(topic)[1:] == [b"x", b"x"][topic == "t0" :] for topic in topics)


def test_several_wait_for_the_housekeeping_of_one(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        lock = engine.partition("c").active_segment.sync_lock
        calls = engine.watching.calls
        lock.acquire()
        engine.partition("before").append([b"in the way"])
        write_batches = [engine.partition(topic).append([b"second"]) for topic in TOPICS]
        engine.inbox.run_until(lambda: engine.watching.calls == calls + 1)
        assert {write_batch.state for write_batch in write_batches} == {PENDING}
        lock.release()
        assert {engine.settle(write_batch).state for write_batch in write_batches} == {COMMITTED}
        assert engine.watching.calls == calls + 1, "the usual way"


def test_the_end_of_a_round_is_seen_without_a_turn_of_the_loop(tmp_path: Path) -> None:
    with NativeLog(tmp_path / "log") as engine:
        begun(engine, *TOPICS)
        write_batches = [engine.partition("a").append([b"second"]), engine.partition("b").append([b"second"])]
        deadline = time.monotonic() + 30
        while PENDING in {write_batch.state for write_batch in write_batches}:
            engine.log.poll_completion()
            assert time.monotonic() < deadline
        assert {write_batch.state for write_batch in write_batches} == {COMMITTED}
        engine.log.poll_completion()
        assert engine.append([b"third"], topic="a").state == COMMITTED
        assert engine.values("a") == [b"first", b"second", b"third"]

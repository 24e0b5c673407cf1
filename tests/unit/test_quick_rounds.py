"""Rounds by the thread without the interpreter: what is on disk, what it tells, failures, and when it is not used."""

from __future__ import annotations

import errno
import os
import resource
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.chunk import COMMITTED, FAILED, PENDING
from engine.config import EngineConfig, TopicConfig
from engine.errors import NotStored, ReadOnly
from engine.files import SystemFiles
from engine.index import Index
from engine.inline import Inbox
from engine.limits import ROUND_PIECES_MAX
from engine.log import Log
from engine.partition import Partition
from engine.quick import AVAILABLE, QuickRounds
from engine.unlocked import DONE, MARK_BYTES, SYNC, WRITE, RoundWriter
from tests.engine_log import EngineLog, segments

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="only where it is compiled")

MARK = bytes(range(MARK_BYTES))


class Writer:
    """A round writer with its thread."""

    def __init__(self, path: Path) -> None:
        self.wake_fd, self.done_fd = os.eventfd(0), os.eventfd(0)
        self.file = os.open(path / "data", os.O_RDWR | os.O_CREAT)
        self.marks = os.open(path / "marks", os.O_RDWR | os.O_CREAT)
        self.writer = RoundWriter(self.wake_fd, self.done_fd)
        self.thread = threading.Thread(target=self.writer.serve)
        self.thread.start()

    def round(self, *pieces: bytes, position: int = 0, fd: int | None = None, mark_fd: int | None = None) -> list[int]:
        """(where it ended, errno, errno of the mark)."""
        for piece in pieces:
            self.writer.add(bytearray(piece), len(piece))
        self.writer.submit(self.file if fd is None else fd, position, True, mark_fd or self.marks, MARK, MARK_BYTES)
        assert select.select([self.done_fd], [], [], 30)[0]
        os.eventfd_read(self.done_fd)
        return list(self.writer.take()[:3])  # type: ignore[arg-type]

    def close(self) -> None:
        self.writer.stop()
        self.thread.join()
        for fd in (self.wake_fd, self.done_fd, self.file, self.marks):
            os.close(fd)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.close()


def test_pieces_and_mark_are_written(writer: Writer, tmp_path: Path) -> None:
    assert writer.round(b"abc", b"", b"defg", position=5) == [DONE, 0, 0]
    assert writer.round(*[b"x"] * ROUND_PIECES_MAX, position=12) == [DONE, 0, 0]
    assert (tmp_path / "data").read_bytes() == bytes(5) + b"abcdefg" + b"x" * ROUND_PIECES_MAX
    assert (tmp_path / "marks").read_bytes() == bytes(MARK_BYTES) + MARK


def test_failures_say_where(writer: Writer, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "data", os.O_RDONLY)
    reader, pipe = os.pipe()
    assert writer.round(b"a", fd=read_only) == [WRITE, errno.EBADF, 0]
    assert writer.round(b"a", mark_fd=read_only) == [DONE, 0, errno.EBADF]
    assert writer.round(b"a", fd=pipe)[0] == WRITE
    with not_to_be_synced() as fd:
        assert writer.round(b"a", fd=fd) == [SYNC, errno.EINVAL, 0]
    for fd in (read_only, reader, pipe):
        os.close(fd)
    assert (tmp_path / "marks").read_bytes() == b""


def test_a_write_that_is_cut_short_fails(writer: Writer, tmp_path: Path) -> None:
    with largest_file(100):
        assert writer.round(b"a" * 80, b"b" * 80) == [WRITE, errno.EFBIG, 0]
    assert (tmp_path / "data").read_bytes() == b"a" * 80 + b"b" * 20
    assert writer.round(b"c" * 160) == [DONE, 0, 0]


def test_buffers_are_held_during_a_round_only(writer: Writer) -> None:
    buffer = bytearray(10)
    writer.writer.add(buffer, 10)
    with pytest.raises(BufferError):
        buffer.append(1)
    assert writer.round() == [DONE, 0, 0]
    buffer.append(1)


def test_misuse_is_refused(writer: Writer) -> None:
    with pytest.raises(ValueError, match="no round"):
        writer.writer.take()
    for size in (-1, 4):
        with pytest.raises(ValueError, match="piece"):
            writer.writer.add(bytearray(3), size)
    with pytest.raises(ValueError, match="nothing"):
        writer.writer.submit(writer.file, 0, True, writer.marks, MARK, 0)
    for _ in range(ROUND_PIECES_MAX):
        writer.writer.add(bytearray(1), 1)
    with pytest.raises(ValueError, match="piece"):
        writer.writer.add(bytearray(1), 1)
    with pytest.raises(ValueError, match="size"):
        writer.writer.submit(writer.file, 0, True, writer.marks, MARK[1:], 0)
    assert writer.round() == [DONE, 0, 0]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond that size (Python ignores the signal)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def not_to_be_synced() -> Iterator[int]:
    """A file that takes every write at every position, and whose sync fails."""
    fd = os.open("/dev/urandom", os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


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
            while stop not in select.select([fd, stop], [], [])[0]:
                seen.clear()
                self.inbox.post(call)
                while not seen.wait(0.01) and not select.select([stop], [], [], 0)[0]:
                    pass

        thread = threading.Thread(target=look)
        thread.start()

        def end() -> None:
            os.close(ending)
            thread.join()
            os.close(stop)

        return end


class QuickLog(EngineLog):
    """A log whose owner can watch descriptors."""

    def __init__(self, path: Path, topic: TopicConfig | None = None, index: Index | None = None) -> None:
        self.path = path
        self.inbox = Inbox()
        self.watching = Watching(self.inbox)
        config = EngineConfig(topic=topic or TopicConfig(), housekeeping_interval_ms=3_600_000)
        self.log = Log.open(path, config, self.inbox.post, index=index, watch=self.watching)


def fail(engine: QuickLog, partition: Partition, value: bytes) -> Exception:
    chunk = engine.settle(partition.append([value]))
    assert chunk.state == FAILED
    assert chunk.error is not None
    return chunk.error


def test_records_are_the_same_after_a_restart(tmp_path: Path) -> None:
    values = [b"%d" % number * (number % 50) for number in range(3000)]
    with QuickLog(tmp_path / "log") as engine:
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
    with QuickLog(tmp_path / "log", TopicConfig(segment_bytes=1 << 20)) as engine:
        for _ in range(60):
            engine.append([value])
        assert len(segments(tmp_path / "log")) > 2
        assert engine.watching.calls > 30
        assert engine.values() == [value] * 60


def test_a_failed_write_is_taken_back_and_leaves_a_gap(tmp_path: Path) -> None:
    with QuickLog(tmp_path / "log") as engine:
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
    with QuickLog(tmp_path / "log") as engine:
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


def test_many_small_chunks_go_the_usual_way(tmp_path: Path) -> None:
    with QuickLog(tmp_path / "log") as engine:
        engine.append([b"first"])
        partition = engine.partition()
        sizes = []
        monkey = QuickRounds._begin

        def begin(self: QuickRounds, part: object) -> bool:
            begun = monkey(self, part)  # type: ignore[arg-type]
            sizes.append((len(part.chunks), begun))  # type: ignore[attr-defined]
            return begun

        QuickRounds._begin = begin  # type: ignore[method-assign,assignment]
        try:
            chunks = [partition.append([b"y" * 3000]) for _ in range(400)]
            engine.settle(chunks[-1])
        finally:
            QuickRounds._begin = monkey  # type: ignore[method-assign]
        assert {chunk.state for chunk in chunks} == {COMMITTED}
        assert all(begun == (count <= ROUND_PIECES_MAX) for count, begun in sizes)
        assert len(engine.values()) == 401


def test_without_a_way_to_watch_there_is_no_such_thread(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "log") as engine:
        assert engine.append([b"a"]).state != PENDING
        assert "quintlog-rounds" not in {thread.name for thread in threading.enumerate()}


def test_chunks_that_cannot_be_sealed_fail_and_nobody_hangs(tmp_path: Path) -> None:
    with QuickLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        calls = engine.watching.calls
        partition.append([b"in the way"])  # its round is under way while the next chunk gathers
        chunk = partition.append([b"spoilt"])
        partition._close_chunk(chunk)
        chunk.buffer[0] ^= 1
        assert type(engine.settle(chunk).error) is ReadOnly
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
    with QuickLog(tmp_path / "log", index=index) as engine:
        engine.append([b"before"])
        index.broken = True
        assert type(fail(engine, engine.partition(), b"unknown")) is ReadOnly
        index.broken = False
        assert engine.append([b"elsewhere"], topic="other").state == COMMITTED


def test_a_sync_that_failed_elsewhere_is_not_forgotten(tmp_path: Path) -> None:
    with QuickLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        size = segments(tmp_path / "log")[0].stat().st_size
        with largest_file(size + 50):
            chunk = partition.append([b"x" * 1000])
            partition.active_segment.sync_failed = True  # by housekeeping, while the round is under way
            assert type(engine.settle(chunk).error) is ReadOnly
        assert partition.active_segment.sync_failed
        assert engine.values() == [b"before"]


def test_a_sync_of_housekeeping_that_fails_beside_a_round_fails_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two syncs at a time the kernel tells one that it failed: the quick round, whose own succeeds, waits for it."""
    reached, written = threading.Event(), threading.Event()

    def fail_when_written(files: SystemFiles, fd: int) -> None:
        reached.set()
        assert written.wait(30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with QuickLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        path = segments(tmp_path / "log")[0]
        size = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(SystemFiles, "sync_data", fail_when_written)
            syncing = threading.Thread(target=engine.log.housekeeping._sync, args=(partition, partition.active_segment))
            syncing.start()
            assert reached.wait(30)
            chunk = partition.append([b"x"])
            while path.stat().st_size == size:
                threading.Event().wait(0.001)
            written.set()
            syncing.join()
            assert type(engine.settle(chunk).error) is ReadOnly
        assert engine.values() == [b"before"]


def test_housekeeping_leaves_a_file_to_the_round_that_syncs_it(tmp_path: Path) -> None:
    with QuickLog(tmp_path / "log") as engine:
        engine.append([b"before"])
        partition = engine.partition()
        chunk = partition.append([b"x"])
        assert partition.active_segment.sync_lock.locked()
        assert not engine.log.housekeeping._sync(partition, partition.active_segment)
        assert engine.settle(chunk).state == COMMITTED
        assert not partition.active_segment.sync_lock.locked()
        assert engine.log.housekeeping._sync(partition, partition.active_segment)

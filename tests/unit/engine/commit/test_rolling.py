"""A round that cannot make what it needs: the end of a segment, the next one, a descriptor."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import DiskFull, ReadOnly
from engine.files.system import SystemFiles
from engine.segments.batches import FAILED
from tests.engine_log import SMALL, EngineLog, fill
from tests.hooked_files import HookedFiles

# --- failures of rolling


def test_a_footer_that_cannot_be_synced_makes_the_partition_read_only(tmp_path: Path) -> None:
    """The footer shares a page with records: after a failed sync nothing in it may be called durable."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        files.failing("sync_data", "00001.log")
        write_batch = engine.settle(partition.append([b"x" * 4000] * 10))
        assert write_batch.state == FAILED
        assert isinstance(write_batch.error, ReadOnly)
        files.hook = lambda call, path: None
        with pytest.raises(ReadOnly):
            partition.append([b"y"])
        assert engine.log.committer.counters.sync_failures == 1
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert len(engine.read()) == 10


@pytest.mark.parametrize("call", ["create", "write", "sync_data", "sync_dir"])
def test_a_new_segment_that_cannot_be_made_is_tried_again(tmp_path: Path, call: str) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        files.failing(call, "/1/0" if call == "sync_dir" else "00011.log", errno.ENOSPC)
        write_batch = engine.settle(partition.append([b"x" * 40_000]))
        assert write_batch.state == FAILED
        assert isinstance(write_batch.error, DiskFull)
        files.hook = lambda call, path: None
        engine.append([b"y" * 40_000])
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == [*range(1, 11), 12]


def test_a_failed_new_segment_that_cannot_even_be_removed(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=SMALL) as engine:
        partition = fill(engine, 1)
        engine.log.committer.roll_next(partition)

        def hook(call: str, path: Path) -> None:
            if (call, path.name) in (("sync_data", "00000000000000000011.log"), ("remove", "00000000000000000011.log")):
                raise OSError(errno.EIO, "Input/output error")

        files.hook = hook
        rounds = engine.log.committer.counters.rounds
        engine.log.committer.request_watermark(partition)
        engine.inbox.run_until(lambda: engine.log.committer.counters.rounds > rounds)
        files.hook = lambda call, path: None
        engine.log.committer.roll_next(partition)
        engine.append([b"x"])
        assert [record.seq for record in engine.read()] == list(range(1, 12))
        assert len(list(partition.active_segment.directory.glob("*.unused"))) == 1


# --- descriptors


def with_descriptors(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_descriptors_used_up_are_an_error_that_passes(tmp_path: Path) -> None:
    """EMFILE: descriptors that lie idle in the cache are given up first; then records are refused, and it goes on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with EngineLog(tmp_path / "d") as engine:
        for number in range(20):
            engine.append([b"x"], topic=str(number))
        taken: list[int] = []
        try:
            with_descriptors(max(map(int, os.listdir("/proc/self/fd"))) + 16)
            while True:
                try:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            engine.append([b"y"], topic="new")  # what lies idle is closed for it
            assert len(engine.log.handles) < 20
            for number in range(20):
                engine.append([b"z"], topic=str(number))
                assert engine.values(str(number)) == [b"x", b"z"]
        finally:
            for fd in taken:
                os.close(fd)
            with_descriptors(before)


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """The process has none left, as it stands."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with_descriptors(max(map(int, os.listdir("/proc/self/fd"))) + 1)
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        with_descriptors(before)
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("then", ["goes on", "stops", "is killed"])
def test_a_roll_without_descriptors_is_tried_again(tmp_path: Path, then: str) -> None:
    """The end of the segment is written; then the next one cannot be made, nor the old one opened to cut that off."""
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        partition = fill(engine, 1)
        active = partition.active_segment

        def give_up_all() -> int:
            given_up = relieve()
            with contextlib.suppress(OSError):
                while True:  # somebody else takes what was given up
                    others.append(os.open("/dev/null", os.O_RDONLY))
            return given_up

        others: list[int] = []
        files = engine.log.files
        assert isinstance(files, SystemFiles)
        relieve, files.relieve = engine.log.handles.relieve, give_up_all
        with without_descriptors():
            write_batches = [engine.settle(partition.append([b"x" * 4000] * 10)) for _ in range(2)]
            assert partition.active_segment is active
        for fd in others:
            os.close(fd)
        for write_batch in write_batches:
            assert write_batch.state == FAILED
            assert not isinstance(write_batch.error, ReadOnly), write_batch.error
            assert str(write_batch.error).count("topic 't'") == 1
            assert "Too many open files" in str(write_batch.error)
        assert active.may_have_torn_tail, "as it was meant to be"
        if then == "goes on":
            engine.append([b"y"])
            assert active.path.stat().st_size == active.position, "nothing is left behind the last record"
            assert [record.seq for record in engine.read()] == [*range(1, 11), 31]
        if then == "is killed":
            engine.image(tmp_path / "killed")
    with EngineLog(tmp_path / ("killed" if then == "is killed" else "d"), topic=SMALL) as engine:
        seqs = [record.seq for record in engine.read()]
        assert seqs == [*range(1, 11), 31] if then == "goes on" else seqs == [*range(1, 11)]
        engine.append([b"z"])


def test_descriptors_used_up_altogether_refuse_and_recover(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"x"])
        engine.log.handles.forget(engine.partition().active_segment.path)
        files.failing("open", ".log", errno.EMFILE)
        write_batch = engine.settle(engine.partition().append([b"y"]))
        assert write_batch.state == FAILED
        assert "Too many open files" in str(write_batch.error)
        files.hook = lambda call, path: None
        engine.append([b"z"])
        assert engine.values() == [b"x", b"z"]

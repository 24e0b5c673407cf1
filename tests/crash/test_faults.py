"""One failing call to the disk at a time, at every place (after SQLite's I/O error tests): reliability rows 4, 5, 11.

A fixed workload runs once to count its calls; then once for each call and error. Whatever fails: nothing that was
acknowledged is missing, what was not stored is said to be not stored, other topics go on, and the next start works.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path

import pytest

from engine.errors import DataDirectoryError, DiskFull, EngineError, NotStored, ReadOnly
from engine.segments.batches import COMMITTED, FAILED
from tests.crash.world import Key, Life
from tests.simulated_files import Late, SimulatedFiles, disk_with

TOPICS = (b"a", b"b")
CODES = (errno.EIO, errno.ENOSPC, errno.EMFILE)

SITES = {
    ("make_dir", "topics"),
    ("make_dir", "topic"),
    ("make_dir", "partition"),
    ("create", "topic.json"),
    ("create", "segment"),
    ("create", "watermarks"),
    ("write", "topic.json"),
    ("write", "segment"),
    ("write", "watermarks"),
    ("sync_data", "topic.json"),
    ("sync_data", "segment"),
    ("sync_data", "watermarks"),
    ("sync_dir", "data"),
    ("sync_dir", "topics"),
    ("sync_dir", "topic"),
    ("sync_dir", "partition"),
    ("rename", "topic.json"),
    ("truncate", "segment"),
    ("remove", "segment"),
    ("remove", "topic.json"),
    ("remove_dir", "partition"),
    ("remove_dir", "topic"),
    ("make_dir", "set-aside"),
    ("create", "set-aside"),
    ("write", "set-aside"),
    ("sync_data", "set-aside"),
    ("sync_dir", "set-aside"),
}
"""Every call of the file layer that changes or syncs something while a log is in use, by what it is about."""


def site(root: Path, call: str, path: Path) -> tuple[str, str]:
    """A call as in `SITES`."""
    parts = path.relative_to(root).parts
    kinds = ("data", "topics", "topic", "partition")
    if path.suffix == ".log":
        return call, "segment"
    if path.name.startswith("topic.json"):
        return call, "topic.json"
    if parts and parts[0] in ("watermarks", "set-aside"):
        return call, parts[0]
    return call, kinds[len(parts)]


class Workload:
    """Two topics, several rounds and rolls, trimming and a deletion; every append's outcome is waited for and noted."""

    def __init__(self, path: Path, files: SimulatedFiles, state: dict[bytes, bytes]) -> None:
        self.life = Life(path, random.Random(1), files, state)
        self.stored: dict[Key, bytes] = {}
        self.refused: list[EngineError] = []

    def append(self, name: bytes, value: bytes) -> bool:
        life = self.life
        try:
            partition = life.partition(name)
            write_batch = partition.append([value])
        except EngineError as problem:
            self.refused.append(problem)
            return False
        key = Key(partition.topic.id, partition.index, partition.last_seq)
        life.inbox.run_until(lambda: write_batch.state in (COMMITTED, FAILED))
        if write_batch.state == FAILED:
            assert write_batch.error is not None
            self.refused.append(write_batch.error)
            return False
        self.stored[key] = value
        return True

    def live(self) -> None:
        for number in range(8):
            for name in TOPICS:
                self.append(name, b"%s %d" % (name, number) + b"." * 15_000)
        self.append(b"gone", b"deleted with its topic")
        gone = self.life.log.catalog.get(b"gone")
        assert gone is not None
        self.life.log.catalog.delete(gone)
        self.stored = {key: value for key, value in self.stored.items() if key.topic_id != gone.id}
        try:
            partition = self.life.partition(b"b")
        except EngineError:
            return
        trimmed_to = min(3, partition.committed_seq + 1)
        partition.trim(trimmed_to)
        self.stored = {
            key: value
            for key, value in self.stored.items()
            if key.topic_id != partition.topic.id or key.seq >= trimmed_to
        }
        for name in TOPICS:
            self.append(name, b"last of " + name)
        self.life.clean(0)
        self.life.settle()

    def check(self) -> None:
        found = self.life.read_all()
        assert {key: found.get(key) for key in self.stored} == self.stored


def count_calls() -> tuple[int, set[tuple[str, str]]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        files = disk_with(path)
        workload = Workload(path, files, {})
        before = len(files.calls)
        workload.live()
        assert not workload.refused
        assert workload.life.partition(b"a").sealed, "the workload rolls"
        workload.life.close()
        torn = workload.life.files.after_kill()
        number = len(torn.root.inodes())
        assert number
        tear(torn, path)
        again = Workload(path, torn, workload.life.state.durable)
        again.check()
        again.life.close()
        calls = [*files.calls, *torn.calls]
        return len(files.calls) - before, {site(path, *call) for call in calls if call[1].name != "VERSION.new"} - {
            ("rename", "data")
        }


def tear(files: SimulatedFiles, path: Path) -> None:
    """Garbage behind the end of topic a's active segment."""
    directory = path / "topics" / "1" / "0"
    name = files.list_dir(directory)[-1]
    fd = files.open(directory / name, write=True)
    files.write(fd, [b"garbage"], files.size(fd))
    files.close(fd)


CALLS, SEEN = count_calls()


def test_the_workload_meets_every_call_site() -> None:
    assert SEEN == SITES


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_any_failing_call(tmp_path: Path, code: int) -> None:
    for call_number in range(1, CALLS + 1):
        try:
            fail_one_call(tmp_path, call_number, code)
        except BaseException:
            print(f"call {call_number}")
            raise


def fail_one_call(path: Path, call_number: int, code: int) -> None:
    workload = Workload(path, disk_with(path), {})
    life = workload.life
    seen = 0
    failed: list[tuple[str, str]] = []
    synced_after: list[Path] = []
    path_failed: Path | None = None

    def hook(call: str, name: Path) -> None:
        nonlocal seen, path_failed
        seen += 1
        if seen == call_number:
            failed.append(site(path, call, name))
            path_failed = name
            raise OSError(code, os.strerror(code), str(name))
        if failed and call == "sync_data" and name == path_failed:
            synced_after.append(name)

    life.files.hook = hook
    workload.live()
    life.files.hook = None
    if failed == [("sync_data", "segment")] and any(isinstance(problem, ReadOnly) for problem in workload.refused):
        assert not synced_after, "no second sync of the same pages is taken for a success"
        assert life.log.committer.counters.sync_failures == 1
    elif failed and failed[0] != ("truncate", "segment"):
        assert len(workload.refused) <= 1, "it goes on by itself"
    if code == errno.ENOSPC and failed and failed[0][0] == "write":
        assert all(isinstance(problem, DiskFull) for problem in workload.refused)
    assert all(isinstance(problem, NotStored) for problem in workload.refused)
    for topic_id in (1, 2):
        assert sum(key.topic_id == topic_id for key in workload.stored) >= 7 or workload.refused
    workload.check()
    life.close()
    second = Workload(path, life.files, life.state.durable)
    second.stored = dict(workload.stored)
    second.check()
    for name in TOPICS:
        assert second.append(name, b"after"), second.refused
    second.life.close()


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_any_failing_call_of_a_recovery(tmp_path: Path, code: int) -> None:
    """Opening fails with an error that tells, and works when it is tried again."""
    first = Workload(tmp_path, disk_with(tmp_path), {})
    first.live()
    image, state = first.life.files.after_kill(), dict(first.life.state.durable)
    first.life.close()
    number = 0
    reached = True
    while reached:
        number += 1
        files = image.after_kill()
        tear(files, tmp_path)
        workload = Workload(tmp_path, files, dict(state))
        workload.stored = dict(first.stored)
        left = number
        reached = False

        def hook(call: str, path: Path) -> None:
            nonlocal left, reached
            left -= 1
            if left == 0:
                reached = True
                raise OSError(code, os.strerror(code), str(path))

        files.hook = hook
        for name in TOPICS:
            if not workload.append(name, b"after"):
                (problem,) = workload.refused
                assert isinstance(problem, DataDirectoryError | NotStored)
                assert os.strerror(code) in str(problem) or isinstance(problem, DiskFull)
                if isinstance(problem, DataDirectoryError | DiskFull):
                    assert workload.append(name, b"after"), workload.refused
        files.hook = None
        workload.check()
        workload.life.close()


def test_what_a_failed_write_left_never_counts(tmp_path: Path) -> None:
    """The write fails after its bytes are in the file: told as not stored, they may not be there after a crash."""
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    life = workload.life
    assert workload.append(b"a", b"first")
    partition = life.partition(b"a")

    def hook(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".log":
            raise Late(errno.EIO, "Input/output error", str(path))

    life.files.hook = hook
    refused = [partition.append([b"refused %d" % number * 1000]) for number in range(3)]
    life.settle()
    assert all(write_batch.state == FAILED for write_batch in refused)
    life.files.hook = None
    images = [life.files.after_kill(), life.files.after_power_cut(random.Random(1))]
    state = dict(life.state.durable)
    assert workload.append(b"a", b"second")
    workload.check()
    life.close()
    for files in images:
        crashed = Life(tmp_path, random.Random(2), files, dict(state))
        assert list(crashed.read_all().values()) == [b"first"]
        crashed.close()


def test_a_full_disk_refuses_with_a_reason_and_recovers_by_itself(tmp_path: Path) -> None:
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    life = workload.life
    assert workload.append(b"a", b"first")
    life.files.capacity_bytes = 20_000
    while workload.append(b"a", b"x" * 3000):
        pass
    assert isinstance(workload.refused[-1], DiskFull)
    assert "no space left" in str(workload.refused[-1])
    workload.check()
    life.files.capacity_bytes = 1 << 40
    assert workload.append(b"a", b"again")
    workload.check()
    life.close()
    second = Life(tmp_path, random.Random(2), life.files, life.state.durable)
    assert second.read_all() == workload.stored
    second.close()


def test_after_a_failed_sync_the_partition_is_read_only_until_a_restart(tmp_path: Path) -> None:
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    life = workload.life
    assert workload.append(b"a", b"kept")

    def hook(call: str, path: Path) -> None:
        if call == "sync_data" and path.suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    life.files.hook = hook
    assert not workload.append(b"a", b"lost")
    life.files.hook = None
    assert not workload.append(b"a", b"refused")
    assert all(isinstance(problem, ReadOnly) for problem in workload.refused)
    assert "restart" in str(workload.refused[0])
    workload.check()
    assert workload.append(b"b", b"others work")
    life.close()
    second = Life(tmp_path, random.Random(2), life.files, life.state.durable)
    found = second.read_all()
    assert {key: value for key, value in found.items() if value != b"lost"} == workload.stored
    second.close()

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

from engine.chunk import COMMITTED, FAILED
from engine.errors import DiskFull, EngineError, NotStored, ReadOnly
from tests.crash.test_power_cut import Run, disk_with
from tests.simulated_files import SimulatedFiles

TOPICS = (b"a", b"b")


class Workload:
    """Two topics, several rounds and rolls; every append is waited for and its outcome noted."""

    def __init__(self, path: Path, files: SimulatedFiles, state: dict[bytes, bytes]) -> None:
        self.run = Run(path, random.Random(1), files, state)
        self.stored: dict[tuple[bytes, int], bytes] = {}
        self.refused: list[EngineError] = []

    def append(self, name: bytes, values: list[bytes]) -> bool:
        run = self.run
        try:
            partition = run.partition(name)
            first = partition.last_seq + 1
            chunk = partition.append(values)
        except NotStored as problem:
            self.refused.append(problem)
            return False
        run.inbox.run_until(lambda: chunk.state in (COMMITTED, FAILED))
        if chunk.state == FAILED:
            assert chunk.error is not None
            self.refused.append(chunk.error)
            return False
        for k, value in enumerate(values):
            self.stored[name, first + k] = value
        return True

    def live(self) -> None:
        for number in range(10):
            for name in TOPICS:
                self.append(name, [b"%s %d.%d" % (name, number, k) + b"." * 3000 for k in range(5)])


def count_calls() -> int:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        workload = Workload(path, disk_with(path), {})
        workload.run.files.calls.clear()
        workload.live()
        calls = len(workload.run.files.calls)
        assert not workload.refused
        assert len(workload.run.partition(b"a").sealed) >= 1, "the workload rolls"
        workload.run.close()
        return calls


CALLS = count_calls()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("call_number", range(1, CALLS + 1))
def test_any_failing_call(tmp_path: Path, call_number: int, code: int) -> None:
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    run = workload.run
    seen = 0
    failed: list[str] = []
    synced_after: list[Path] = []
    path_failed: Path | None = None

    def hook(call: str, path: Path) -> None:
        nonlocal seen, path_failed
        seen += 1
        if seen == call_number:
            failed.append(call)
            path_failed = path
            raise OSError(code, os.strerror(code), str(path))
        if failed and call == "sync_data" and path == path_failed:
            synced_after.append(path)

    run.files.hook = hook
    workload.live()
    assert failed, "the call was made"
    assert len(workload.stored) >= 50, "the topic that was not hit goes on"
    if failed == ["sync_data"] and path_failed is not None and path_failed.suffix == ".log" and workload.refused:
        first = workload.refused[0]
        if isinstance(first, ReadOnly):
            assert not synced_after, "no second sync of the same pages is taken for a success"
            assert run.log.committer.counters.sync_failures <= 1
    if code == errno.ENOSPC and failed == ["write"]:
        assert all(isinstance(problem, DiskFull) for problem in workload.refused)
        assert len(workload.refused) <= 1, "it goes on by itself"
    found = run.read_all()
    assert {key: found.get(key) for key in workload.stored} == workload.stored
    run.close()
    second = Run(tmp_path, random.Random(2), run.files, run.state.durable)
    found = second.read_all()
    assert {key: found.get(key) for key in workload.stored} == workload.stored
    for name in TOPICS:
        second.partition(name).append([b"after"])
    second.files_settled()
    second.close()


def test_a_full_disk_refuses_with_a_reason_and_recovers_by_itself(tmp_path: Path) -> None:
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    run = workload.run
    assert workload.append(b"a", [b"first"])
    run.files.capacity_bytes = 20_000
    while workload.append(b"a", [b"x" * 3000]):
        pass
    assert isinstance(workload.refused[-1], DiskFull)
    assert "no space left" in str(workload.refused[-1])
    assert len(run.read_all()) == len(workload.stored), "reads go on"
    run.files.capacity_bytes = 1 << 40
    assert workload.append(b"a", [b"again"])
    found = run.read_all()
    assert found == workload.stored
    run.close()
    second = Run(tmp_path, random.Random(2), run.files, run.state.durable)
    assert second.read_all() == workload.stored
    second.close()


def test_after_a_failed_sync_the_partition_is_read_only_until_a_restart(tmp_path: Path) -> None:
    workload = Workload(tmp_path, disk_with(tmp_path), {})
    run = workload.run
    assert workload.append(b"a", [b"kept"])

    def hook(call: str, path: Path) -> None:
        if call == "sync_data" and path.suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    run.files.hook = hook
    assert not workload.append(b"a", [b"lost"])
    run.files.hook = None
    assert not workload.append(b"a", [b"refused"])
    assert all(isinstance(problem, ReadOnly) for problem in workload.refused)
    assert "restart" in str(workload.refused[0])
    assert run.read_all() == workload.stored
    assert workload.append(b"b", [b"others work"])
    run.close()
    second = Run(tmp_path, random.Random(2), run.files, run.state.durable)
    assert {key: value for key, value in second.read_all().items() if value != b"lost"} == workload.stored
    second.close()

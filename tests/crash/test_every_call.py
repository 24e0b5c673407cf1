"""A fixed workload of all kinds of operations, ended at each of its calls to the disk in turn.

It ends by a kill, by a power cut that takes everything unsynced, by one that takes nothing. Then a life that stores
more, and the worst power cut again: what a killed process left unsynced must be made durable by the next one before
anything that depends on it is acknowledged (reliability row 10: files that vanish although they were synced).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from tests.crash.world import Known, Life
from tests.simulated_files import KeepAll, LoseAll, SimulatedFiles, disk_with


def workload(life: Life) -> None:
    """Partitions are made, roll, are trimmed, configured, deleted, made anew; transactions and bundles between."""
    for name in (b"together", b"interval"):
        life.put(life.partition(name), name)
    life.settle()  # both were made together
    for number in range(4):
        for name in (b"a", b"never"):
            partition = life.partition(name)
            for k in range(2):
                value = b"%s %d.%d" % (name, number, k)
                life.put(partition, value)
        life.settle()
        partition = life.partition(b"a")
        life.log.committer.roll_next(partition)
    life.transact(1)
    life.settle()
    life.trim(0)
    life.settle()
    life.clean(0)
    life.append_bundle(2)
    life.settle()
    life.configure(3)
    life.settle()
    life.delete(0)
    life.settle()
    life.append(4)
    life.settle()


def calls_of_the_workload() -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        life = Life(path, random.Random(3), disk_with(path), {})
        life.files.calls.clear()
        workload(life)
        life.close()
        return [call for call, _ in life.files.calls]


CALLS = calls_of_the_workload()


def test_the_workload_makes_every_kind_of_call() -> None:
    assert {"create", "write", "sync_data", "sync_dir", "make_dir", "rename", "remove", "remove_dir"} <= set(CALLS)


@pytest.mark.parametrize("end", ["kill", "lose", pytest.param("keep", marks=pytest.mark.slow)])
def test_ended_at_each_call(tmp_path: Path, end: str) -> None:
    for number in range(1, len(CALLS) + 1):
        images: list[tuple[SimulatedFiles, dict[bytes, bytes], Known]] = []
        first = Life(tmp_path, random.Random(3), disk_with(tmp_path), {})
        left = number

        def hook(call: str, path: Path, first: Life = first, images: list = images) -> None:  # type: ignore[type-arg]
            nonlocal left
            left -= 1
            if left == 0:
                files = (
                    first.files.after_kill()
                    if end == "kill"
                    else first.files.after_power_cut(LoseAll() if end == "lose" else KeepAll())
                )
                images.append((files, dict(first.state.durable), first.known.copy()))

        first.files.hook = hook
        workload(first)
        first.close()
        if not images:  # threads take turns: a call fewer than when they were counted
            continue
        files, state, known = images[0]
        second = Life(tmp_path, random.Random(4), files, state, known)
        second.check()
        for name in (b"a", b"never"):
            partition = second.partition(name)
            second.put(partition, b"more")
        second.settle()
        second.check()
        cut = second.files.after_power_cut(LoseAll())
        second.close()
        third = Life(tmp_path, random.Random(5), cut, second.state.durable, second.known)
        third.check()
        third.close()

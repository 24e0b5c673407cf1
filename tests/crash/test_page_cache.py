"""A failed sync, a restart of the process with the same page cache, a power cut (question 8 of the design).

After a failed fdatasync Linux calls the pages clean: reads still see them, the next sync reports success, the medium
does not have them [PostgreSQL's wiki on fsync errors; Rebello et al., ATC'20]. So recovery must write again what it
keeps above the floor, before any reader sees it.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path

import pytest

from engine.segments.batches import COMMITTED, FAILED
from tests.crash.world import Life
from tests.simulated_files import PAGE_BYTES, Inode, disk_with

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SEEDS = 5000 if NIGHTLY else 200


def test_the_model_of_a_failed_sync() -> None:
    inode = Inode()
    inode.apply((0, b"a" * PAGE_BYTES))
    inode.sync()
    inode.apply((PAGE_BYTES, b"b" * PAGE_BYTES))
    inode.fail_sync(random.Random(0))
    assert bytes(inode.durable) == b"a" * PAGE_BYTES, "this seed keeps nothing of it"
    assert bytes(inode.content) == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES
    inode.sync()
    assert bytes(inode.durable) == b"a" * PAGE_BYTES + bytes(PAGE_BYTES), "success, and the data is gone"
    inode.evict()
    assert bytes(inode.content) == bytes(inode.durable)
    inode.apply((PAGE_BYTES, b"b" * PAGE_BYTES))
    inode.sync()
    assert bytes(inode.durable) == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES


def fail_syncs_of_segments(life: Life) -> None:
    def hook(call: str, path: Path) -> None:
        if call == "sync_data" and path.suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    life.files.hook = hook


def append(life: Life, value: bytes) -> bool:
    partition = life.partition(b"a")
    write_batch = life.put(partition, value)
    life.inbox.run_until(lambda: write_batch.state in (COMMITTED, FAILED))
    life.collect()
    return write_batch.state == COMMITTED


def one_history(path: Path, seed: int) -> None:
    dice = random.Random(seed)
    first = Life(path, dice, disk_with(path), {})
    first.files.dice = dice
    for number in range(dice.randint(1, 5)):
        assert append(first, b"stored %d" % number + b"." * dice.choice((0, 100, 5000)))
    fail_syncs_of_segments(first)
    assert not append(first, b"failed" + b"!" * dice.choice((0, 100, 5000, 20_000)))
    files = first.files.after_kill()
    first.close()
    if dice.random() < 0.5:
        files.evict()
    # The next process finds the failed record or not; who reads it may go on reading it.
    second = Life(path, dice, files, first.state.durable, first.known)
    second.check()
    for number in range(dice.randint(0, 3)):
        assert append(second, b"after the restart %d" % number)
    cut = second.files.after_power_cut(dice)
    second.close()
    third = Life(path, dice, cut, second.state.durable, second.known)
    third.check()
    third.close()


@pytest.mark.slow
@pytest.mark.timeout(60 + SEEDS)
def test_failed_sync_restart_power_cut() -> None:
    """Nothing acknowledged is lost, and nothing that the process between was seen to have."""
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(SEEDS):
            try:
                one_history(Path(directory), seed)
            except BaseException:
                print(f"seed {seed}")
                raise


def test_a_sealed_segment_whose_sync_failed_is_written_again(tmp_path: Path) -> None:
    """Killed between the footer and its sync (which would have failed): the next process must not trust the cache."""
    dice = random.Random(2)
    first = Life(tmp_path, dice, disk_with(tmp_path), {})
    assert append(first, b"stored")
    partition = first.partition(b"a")
    active = partition.active_segment
    with first.log.handles.use(active.path) as fd:
        first.files.write(fd, [active.footer().pack(active.header.segment_id)], active.position)
        inode = first.files._open[fd][0]
        inode.unsynced.clear()  # as after a failed sync of which nothing reached the medium
    files = first.files.after_kill()
    first.close()
    second = Life(tmp_path, dice, files, first.state.durable, first.known)
    assert append(second, b"in the next segment")
    assert len(second.partition(b"a").sealed) == 1
    cut = second.files.after_power_cut(dice)
    second.close()
    # Before the third process looks, which would make a footer anew.
    stored = [bytes(inode.durable) for inode in cut.root.inodes() if b"QLFOOTER" in inode.durable]
    third = Life(tmp_path, dice, cut, second.state.durable, second.known)
    third.check()
    (sealed,) = third.partition(b"a").sealed
    assert third.log.figures.lost_records == 0
    assert sealed.records == 1
    assert [len(content) for content in stored] == [sealed.size_bytes], "the footer is on the medium"
    third.close()

"""Syncs of one file by two threads at a time: of two, the kernel tells only one that they failed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from engine.config import TopicConfig
from engine.errors import ReadOnly
from engine.partitions.partition import Partition
from engine.segments.batches import FAILED
from tests.engine_log import EngineLog
from tests.hooked_files import HookedFiles

INTERVAL = TopicConfig(durability="interval", sync_interval_ms=3_600_000)


def always(engine: EngineLog, partition: Partition) -> None:
    """Changes the topic's durability."""
    changed: list[object] = []
    engine.log.catalog.configure(partition.topic, {"durability": "always"}, changed.append)
    engine.inbox.run_until(lambda: bool(changed))
    assert changed == [None]


def test_a_sync_of_housekeeping_that_fails_beside_a_round_fails_the_round(tmp_path: Path) -> None:
    """The kernel tells one of two syncs at a time that both failed, here the one that began first."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=INTERVAL) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        reached, begun = threading.Event(), threading.Event()

        def hook(call: str, path: Path) -> None:
            if call == "sync_data" and path == partition.active_segment.path and not reached.is_set():
                reached.set()
                assert begun.wait(30)
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        always(engine, partition)
        files.hook = hook
        housekeeping = threading.Thread(
            target=engine.log.committer.interval_syncs.sync, args=(partition, partition.active_segment)
        )
        housekeeping.start()
        assert reached.wait(30)
        write_batch = partition.append([b"2"])
        begun.set()
        engine.settle(write_batch)
        housekeeping.join()
        assert write_batch.state == FAILED
        assert isinstance(write_batch.error, ReadOnly)
        assert engine.values() == [b"1"]


def test_a_sync_of_a_round_that_fails_beside_housekeeping_is_not_made_good_by_that(tmp_path: Path) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, topic=INTERVAL) as engine:
        engine.append([b"1"])
        partition = engine.partition()
        active = partition.active_segment
        durable = active.durable_position
        syncs: list[bool] = []

        def hook(call: str, path: Path) -> None:
            if call == "sync_data" and path == active.path:
                assert not engine.log.committer.interval_syncs.sync(partition, active), "beside this one"
                syncs.append(True)
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        always(engine, partition)
        files.hook = hook
        assert isinstance(engine.settle(partition.append([b"2"])).error, ReadOnly)
        assert not engine.log.committer.interval_syncs.sync(partition, active), "after it"
        assert syncs == [True]
        assert active.durable_position == durable
        files.hook = lambda call, path: None


def test_nothing_is_cut_off_while_a_sync_is_under_way(tmp_path: Path) -> None:
    """At its end it would call durable what is no longer there."""
    with EngineLog(tmp_path / "d", topic=INTERVAL) as engine:
        engine.append([b"1"])
        log, active = engine.log, engine.partition().active_segment
        with log.handles.use(active.path) as fd:
            log.files.write(fd, [b"of a round that failed"], active.position)
        active.may_have_torn_tail = True
        cutting = threading.Thread(target=active.cut, args=(log.files, log.handles))
        with active.sync_lock:
            cutting.start()
            cutting.join(0.1)
            assert active.path.stat().st_size > active.position
        cutting.join()
        assert active.path.stat().st_size == active.position

"""What a running log has stored is a log again: the shipper's bucket, and the way back, at any moment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.remote.objects import Objects
from engine.remote.restoring import Restored, Restoring
from engine.remote.snapshot import read_snapshot
from engine.remote.verifying import Verifier
from tests.engine_log import SMALL, EngineLog
from tests.faulty_store import MemoryStore
from tests.packed_bucket import entries_in, findings
from tests.shipped_log import Locked, shipping, wait_stored, wait_until

SEEDS = 40 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 2
STEPS = 40


def restored(store: Any, target: Path) -> Restored:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with Objects(store) as objects:
        found: list[object] = []
        Verifier(objects, found.append).run(full=True)
        assert found == []
        return Restoring(objects, read_snapshot(objects), target).run()


def step(log: EngineLog, random: Random, number: int) -> None:
    """Something that a client does."""
    topic = random.choice(("a", "b", f"new-{number % 5}"))
    kind = random.random()
    if kind < 0.7:
        log.append([b"%d " % number + random.randbytes(random.randrange(3000))] * random.randrange(1, 12), topic=topic)
    elif kind < 0.85:
        transaction, done = log.log.transaction(), list[Any]()
        for name in ("a", "b"):
            transaction.append(log.partition(name), b"transaction %d" % number)
        transaction.commit(done.append)
        log.inbox.run_until(lambda: bool(done))
        assert done == [None]
    elif kind < 0.92:
        partition = log.partition(topic)
        partition.trim(max(1, partition.committed_seq // 3))
    else:
        log.log.catalog.configure(log.partition(topic).topic, {"retention": f"{number + 1}d"})


def values_of(log: EngineLog) -> dict[bytes, list[tuple[int, bytes]]]:
    """All records with their numbers, by topic."""
    return {
        topic.name: [(record.seq, record.value) for record in log.read(topic.name.decode())]
        for topic in log.log.catalog
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_way_there_and_back(tmp_path: Path, seed: int) -> None:
    random, store, target = Random(seed), Locked(MemoryStore()), tmp_path / "restored"
    for start in range(2):
        with EngineLog(tmp_path / "log", topic=SMALL) as log:
            shipper = shipping(log, store, piece_bytes=20_000)
            for number in range(STEPS):
                step(log, random, number + start * STEPS)
                if start and not number % 10 and shipper.progress.version:
                    # At any moment: a beginning of each partition, and nothing else.
                    report = restored(store, target)
                    assert report.lost == []
                    assert findings(target) == []
            wait_stored(log, shipper, store)
            wait_until(log, lambda shipper=shipper: shipper.is_idle)  # type: ignore[misc]
            restored(store, target)
            before = values_of(log)
            state = dict(log.log.state.stored())  # type: ignore[attr-defined]
    assert entries_in(target) == state
    assert findings(target) == []
    with EngineLog(target, topic=SMALL) as log:
        assert values_of(log) == before
        for topic, records in before.items():
            partition = log.partition(topic.decode())
            had_files, last = partition.has_files, max((number for number, _ in records), default=0)
            first = log.append([b"more"], topic=topic.decode()).first_seq
            assert first > last + (1 << 20) if had_files else first == 1, "numbers may have been given out since"
    assert findings(target) == []

"""What is stored of a log is the log, byte for byte, whatever happens between."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from engine.config import TopicConfig
from engine.directory_layout import LINEAGE_FILE
from engine.errors import ReadOnly
from engine.remote.names import HEAD, pin_name
from engine.remote.pins import Pin
from engine.remote.store import Bytes, Described, Unclear, run
from engine.remote.writes import HeadWriter, read_head, take_over
from engine.shipping import changes, manifest
from engine.shipping.asking import Asking
from engine.shipping.shipper import STOPPED, Shipper
from engine.state.store import Delete, Put
from tests.engine_log import SMALL, EngineLog
from tests.faulty_store import Asked, FaultyStore, MemoryStore
from tests.shipped_log import Locked, found_in, shipping, wait_stored, wait_until


def no_wait(attempts: int) -> None:
    """For pauses."""


def test_an_empty_log_is_stored(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Locked(store))
        wait_stored(log, shipper, store)


def test_what_is_there_and_what_comes_are_stored(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log", topic=SMALL) as log:
        for number in range(6):
            log.append([b"%d" % number * 30_000])
        log.append([b"x"], "other", 0)
        shipper = shipping(log, Locked(store))
        found = wait_stored(log, shipper, store)
        assert len(found.catalog.segments) >= 2
        assert all(one.next == after.first for one, after in pairwise(found.catalog.segments))
        for number in range(9):
            log.append([b"%d" % number * 30_000])
            log.append([b"y"], f"new-{number}")
        log.log.state.submit([Put(b"c/x", 1), Put(b"c/y", 2)])
        log.log.state.submit([Delete(b"c/x")])
        log.log.catalog.delete(log.partition("other").topic)
        found = wait_stored(log, shipper, store)
        assert len(found.catalog.topics) == 10
        assert shipper.progress.state_copies == 1


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store = MemoryStore()
    for start in range(3):
        with EngineLog(tmp_path / "log", topic=SMALL) as log:
            log.append([b"before"] * 50, f"t{start}")
            shipper = shipping(log, Locked(store))
            wait_stored(log, shipper, store)
            log.append([b"after" * 5000] * 20)
            assert wait_stored(log, shipper, store).head.epoch == start + 1
            log.append([b"not stored"], "last")


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_loses_doubles_and_delays(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    store = FaultyStore(random)
    with EngineLog(tmp_path / "log", topic=TopicConfig(segment_bytes=64 << 10, durability="never")) as log:
        shipper = shipping(log, Locked(Asked(store)))
        for _ in range(30):
            log.append([random.randbytes(random.randrange(9000))], f"t{random.randrange(4)}")
            log.log.state.submit([Put(b"c/%d" % random.randrange(9), random.randrange(99))])
            if random.random() < 0.3:
                log.inbox.run_pending()
        store.calm()
        wait_stored(log, shipper, store)


def test_another_primary_ends_it_and_nothing_more_is_taken(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Locked(store))
        log.append([b"x"])
        wait_stored(log, shipper, store)
        writer = HeadWriter(*run(read_head(1), store, no_wait))
        run(take_over(writer, "another", "", "b" * 32, 1), store, no_wait)
        log.append([b"y"])
        log.inbox.run_until(lambda: log.log.error is not None)
        with pytest.raises(ReadOnly, match="another primary"):
            log.append([b"z"])
        assert "another primary" in shipper.problem
        assert found_in(store).head.owner == "another"


def test_a_head_that_is_gone_ends_shipping_and_the_log_goes_on(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Locked(store))
        log.append([b"x"])
        wait_stored(log, shipper, store)
        store.delete(HEAD)
        log.append([b"y"])
        log.inbox.run_until(lambda: shipper.progress.phase == STOPPED)
        assert "the head is gone from the bucket" in shipper.problem
        assert log.append([b"z"])
    with EngineLog(tmp_path / "log") as log:
        new = MemoryStore()
        again = shipping(log, Locked(new))
        wait_stored(log, again, new)
        assert again.stalled_s == 0


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryStore):
        left = 5

        def describe(self, name: str) -> Described:
            self.left -= 1
            if self.left >= 0:
                raise Unclear("no answer")
            return Described(name, 1, "tag", 1)

    caplog.set_level("INFO")
    asking = Asking(Away())
    with asking.using():
        for _ in range(5):
            with pytest.raises(Unclear):
                asking.describe("x")
        for _ in range(2):
            asking.describe("x")
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages[1] == "object storage answers again, after 5 attempts"


def test_a_copy_of_the_directory_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        wait_stored(log, shipping(log, Locked(store)), store)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with EngineLog(tmp_path / "log") as log:
        wait_stored(log, shipping(log, Locked(store)), store)
    with EngineLog(tmp_path / "copy") as copy, EngineLog(tmp_path / "foreign") as foreign:
        copied, new = shipping(copy, Locked(store)), shipping(foreign, Locked(store))
        copy.inbox.run_until(lambda: copied.progress.phase == STOPPED)
        foreign.inbox.run_until(lambda: new.progress.phase == STOPPED)
        assert "another copy of this directory has gone on" in copied.problem
        assert "another log is stored there" in new.problem
        assert "take [remote] out of the configuration" in copied.problem
        copy.inbox.run_until(lambda: copy.log.error is not None)
        with pytest.raises(ReadOnly, match="another copy of this directory has gone on"):
            copy.append([b"would be a second log"])
        assert foreign.append([b"taken all the same"])
    with EngineLog(tmp_path / "copy") as copy:
        new_store = MemoryStore()
        shipper = shipping(copy, Locked(new_store))
        copy.append([b"a log of its own"])
        wait_stored(copy, shipper, new_store)


def test_a_log_that_has_less_than_what_is_stored_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        log.append([b"x"])
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    with EngineLog(tmp_path / "log") as log:
        log.append([b"x"])
        wait_stored(log, shipping(log, Locked(store)), store)
    shutil.copy(tmp_path / "log" / LINEAGE_FILE, tmp_path / "older")
    with EngineLog(tmp_path / "older") as log:
        shipper = shipping(log, Locked(store))
        log.inbox.run_until(lambda: shipper.progress.phase == STOPPED)
        assert "partition 1/0 has less than what is stored of it" in shipper.problem


def test_a_defect_in_a_cut_ends_it_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineLog(tmp_path / "log") as log:
        store = MemoryStore()
        shipper = shipping(log, Locked(store))
        wait_stored(log, shipper, store)

        def defect(_: object) -> None:
            raise KeyError("a defect")

        monkeypatch.setattr(changes, "partition_cut", defect)
        log.append([b"x"])
        wait_until(log, lambda: shipper.progress.phase == STOPPED)
        assert "a defect" in shipper.problem


def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """Neither by who appends nor by who closes the log."""
    hold = threading.Event()

    class Hanging(MemoryStore):
        def put_if_absent(self, name: str, content: Bytes) -> str:
            hold.wait(30)
            raise Unclear("no answer")

    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Hanging())
        for _ in range(20):
            log.append([b"x"])
        assert shipper.lag[:2] == (20, log.log.committer.counters.bytes)
    hold.set()


def test_too_many_changes_of_the_state_are_a_new_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "DELTA_BYTES_MAX", 2000)
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Locked(store))
        wait_stored(log, shipper, store)
        for number in range(5):
            log.log.state.submit([Put(b"c/%d-%d" % (number, index), index) for index in range(99)])
            wait_stored(log, shipper, store)
        assert shipper.progress.state_copies > 1


def test_small_heads_become_pages_and_pages_become_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "RECENT_PIECES", 1)
    monkeypatch.setattr(manifest, "PAGES_MAX", 3)
    monkeypatch.setattr(manifest, "PAGE_ROWS", 2)
    store = MemoryStore()
    for _ in range(2):
        with EngineLog(tmp_path / "log", topic=SMALL) as log:
            shipper = shipping(log, Locked(store), grace_ms=1)
            for number in range(12):
                log.append([b"%d" % number * 20_000], f"t{number % 3}")
                wait_stored(log, shipper, store)
            found = wait_stored(log, shipper, store)
            assert 1 < len(found.head.catalog) < 30
            assert found.catalog.segments


def test_what_nothing_needs_any_more_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while the bucket has what the head names, and nothing else."""
    monkeypatch.setattr(manifest, "RECENT_PIECES", 2)
    monkeypatch.setattr(manifest, "PAGES_MAX", 3)
    store = MemoryStore()
    for _ in range(2):
        with EngineLog(tmp_path / "log", topic=SMALL) as log:
            shipper = shipping(log, Locked(store), grace_ms=1)
            for number in range(12):
                log.append([b"%d" % number * 20_000])
                wait_stored(log, shipper, store)
            log.partition().trim(log.partition().committed_seq - 2)
            log.append([b"x"], "gone")
            wait_stored(log, shipper, store)
            log.log.catalog.delete(log.partition("gone").topic)

            wait_until(log, partial(is_clean, shipper, store))


def is_clean(shipper: Shipper, store: MemoryStore) -> bool:
    if not shipper.is_idle:
        return False
    found = found_in(store)
    named = {str(ref.name) for ref in (*found.head.named(), *found.catalog.pieces, *found.catalog.deltas)}
    return store.objects.keys() == {"head", *named, *(one.path for one in found.catalog.segments)}


def test_many_small_pieces_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of several partitions and over a restart, and what they held is removed."""
    monkeypatch.setattr(manifest, "PIECES_KEPT", 6)
    store = MemoryStore()
    for _ in range(2):
        with EngineLog(tmp_path / "log") as log:
            shipper = shipping(log, Locked(store), grace_ms=1)
            for number in range(30):
                log.append([b"%d" % number], f"t{number % 2}")
                found = wait_stored(log, shipper, store)
                assert len(found.catalog.pieces) <= 7
            wait_until(log, partial(is_clean, shipper, store))


def test_what_somebody_reads_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "PIECES_KEPT", 2)
    store = MemoryStore()
    with EngineLog(tmp_path / "log") as log:
        shipper = shipping(log, Locked(store), grace_ms=1)
        log.append([b"x"])
        head = wait_stored(log, shipper, store).head
        store.put_if_absent(pin_name("reader.1"), Pin(head.lineage, head.version, "reader", 60_000).pack())
        for _ in range(9):
            log.append([b"x"])
            wait_stored(log, shipper, store)
        assert {str(ref.name) for ref in head.named()} <= store.objects.keys()
        store.delete(pin_name("reader.1"))
        wait_until(log, partial(is_clean, shipper, store))

"""The index on real LMDB files: a model of it kept beside it, reopening, and every way in which it can be unusable."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import DataDirectoryError, LogLocked
from engine.files.system import SystemFiles
from engine.limits import INDEX_INTERVAL_BYTES
from engine.state.index import FORMAT_KEY, SEQ, TIME, Index, SeqEntry, TimeEntry
from tests.engine_log import EngineLog, fill
from tests.lmdb_state import data_file_replaced

STEP = INDEX_INTERVAL_BYTES
ROOT = str(Path(__file__).resolve().parents[4])
SEGMENT = 0xABCDEF


@contextmanager
def opened(path: Path, interval_ms: int = 60_000, **settings: int) -> Iterator[Index]:
    index = Index(path, SystemFiles(), EngineConfig(index_commit_interval_ms=interval_ms, **settings))
    try:
        yield index
    finally:
        index.close()


def add(index: Index, number: int, seq: int, time_ms: int | None = None, segment_id: int = SEGMENT) -> None:
    index.add(number, seq, segment_id, 1, seq * STEP, time_ms if time_ms is not None else 1000 + seq)


def seq_of(entry: SeqEntry | TimeEntry | None) -> int | None:
    return entry.first_seq if entry is not None else None


def raw_put(path: Path, database: bytes | None, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path), max_dbs=2, lib_version=0) as environment:
        handle = environment.open_db(database) if database is not None else None
        with environment.begin(write=True) as transaction:
            transaction.put(key, value, db=handle)


@pytest.mark.parametrize("stored", [False, True])
def test_floor_names_the_entry_at_or_before(tmp_path: Path, stored: bool) -> None:
    with opened(tmp_path / "index") as index:
        assert index.floor(1, 5) is None
        assert index.floor_time(1, 5) is None
        for number, seq in ((1, 10), (1, 20), (2, 5), (2, 15), (0xFFFFFFFF, 7)):
            add(index, number, seq)
        if stored:
            index.flush()
        assert [seq_of(index.floor(1, seq)) for seq in (9, 10, 19, 20, 2**64 - 1)] == [None, 10, 10, 20, 20]
        assert [seq_of(index.floor(2, seq)) for seq in (0, 5, 14, 15, 100)] == [None, 5, 5, 15, 15]
        assert [seq_of(index.floor(0xFFFFFFFF, seq)) for seq in (6, 7)] == [None, 7]
        assert [index.floor(number, 100) for number in (0, 3)] == [None, None]
        assert index.floor(1, 12) == SeqEntry(10, SEGMENT, 1, 10 * STEP)
        assert [seq_of(index.floor_time(1, ms)) for ms in (1010, 1011, 1020, 1021, 10**15)] == [None, 10, 10, 20, 20]
        assert index.floor_time(1, 1015) == TimeEntry(1010, 10, SEGMENT)


def test_entries_survive_a_close_and_are_extended(tmp_path: Path) -> None:
    for start in (0, 100, 200):
        with opened(tmp_path / "index") as index:
            assert not index.rebuilt
            assert seq_of(index.floor(7, 10_000)) == (start - 1 if start else None)
            for seq in range(start, start + 100):
                add(index, 7, seq)
    with opened(tmp_path / "index") as index:
        assert [seq_of(index.floor(7, seq)) for seq in range(300)] == list(range(300))


def test_entries_too_near_are_left_out(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        for seq, position in enumerate([100, 101, 100 + STEP - 1, 100 + STEP, 90], start=1):
            index.add(1, seq, SEGMENT, 1, position, seq)
        index.add(1, 6, SEGMENT + 1, 6, 90, 6)
        index.add(2, 1, SEGMENT, 1, 91, 1)
        assert [seq_of(index.floor(1, seq)) for seq in range(1, 7)] == [1, 1, 1, 4, 5, 6]
        assert seq_of(index.floor(2, 9)) == 1


def test_times_never_go_back(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        add(index, 1, 1, 100)
        index.flush()
        for seq, time_ms in ((2, 50), (3, 100), (4, 101), (5, 101), (6, 90), (7, 200)):
            add(index, 1, seq, time_ms)
            if seq == 4:
                index.flush()
        # What is wanted may begin right behind the entry named, never before it.
        expected = {50: None, 100: None, 101: 1, 102: 4, 200: 4, 201: 7}
        assert {ms: seq_of(index.floor_time(1, ms)) for ms in expected} == expected
    with opened(tmp_path / "index") as index:
        assert {ms: seq_of(index.floor_time(1, ms)) for ms in expected} == expected
        add(index, 1, 8, 150)  # the running maximum is known again after a restart
        assert seq_of(index.floor_time(1, 201)) == 7
        add(index, 1, 9, 201)
        assert seq_of(index.floor_time(1, 202)) == 9


def test_remove_truncate_and_drop(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        for number in (1, 2, 3, 0xFFFFFFFF):
            for seq in range(10, 60):
                add(index, number, seq)
            index.flush()
            for seq in range(60, 100):
                add(index, number, seq)
        index.remove(1, 20)
        index.truncate(1, 79)
        index.truncate(2, 29)
        index.drop(3)
        index.truncate(0xFFFFFFFF, 29)
        for flushed in (False, True):
            if flushed:
                index.flush()
            assert [seq_of(index.floor(1, seq)) for seq in (19, 20, 50, 79, 99)] == [None, 20, 50, 79, 79]
            assert [seq_of(index.floor(2, seq)) for seq in (9, 10, 29, 99)] == [None, 10, 29, 29]
            assert [seq_of(index.floor(0xFFFFFFFF, seq)) for seq in (9, 10, 29, 99)] == [None, 10, 29, 29]
            assert index.floor(3, 99) is None
            # What a time says of numbers below the range stays true, and the last of these stays.
            assert [seq_of(index.floor_time(1, ms)) for ms in (1020, 1021, 5000)] == [19, 20, 79]
            assert seq_of(index.floor_time(1, 1019)) == (None if flushed else 18)
            assert [seq_of(index.floor_time(2, ms)) for ms in (1010, 1011, 5000)] == [None, 10, 29]
            assert index.floor_time(3, 5000) is None
        # What comes after may use the same numbers and times again.
        for number in (1, 2, 3):
            add(index, number, 90, 1035 if number == 2 else 1090)
        assert [seq_of(index.floor(number, 99)) for number in (1, 2, 3)] == [90, 90, 90]
        assert [seq_of(index.floor_time(number, 1036)) for number in (1, 2, 3)] == [35, 90, None]
        index.flush()
        assert [seq_of(index.floor(number, 89)) for number in (1, 2, 3)] == [79, 29, None]


@contextmanager
def commit_held_up(index: Index) -> Iterator[None]:
    """What was noted so far is the committing batch meanwhile."""
    with index._environment._environment.begin(write=True):
        index._wake.set()
        while index.info()["pending"]:
            time.sleep(0.001)
        yield


def test_three_layers_while_a_commit_runs(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        for seq in range(10, 40):
            add(index, 1, seq)
        index.flush()
        index.remove(1, 20)
        for seq in range(40, 60):
            add(index, 1, seq)
        with commit_held_up(index):
            assert [seq_of(index.floor(1, seq)) for seq in (19, 20, 45, 99)] == [None, 20, 45, 59]
            assert [seq_of(index.floor_time(1, ms)) for ms in (1020, 1021, 9000)] == [19, 20, 59]
            index.truncate(1, 45)
            index.remove(1, 30)
            for _ in range(2):
                assert [seq_of(index.floor(1, seq)) for seq in (29, 30, 45, 99)] == [None, 30, 45, 45]
                assert [seq_of(index.floor_time(1, ms)) for ms in (1030, 1031, 1046, 9000)] == [29, 30, 45, 45]
            add(index, 1, 50, 1046)
            add(index, 1, 51, 1040)
            assert [seq_of(index.floor(1, seq)) for seq in (45, 49, 50, 99)] == [45, 45, 50, 51]
            assert [seq_of(index.floor_time(1, ms)) for ms in (1046, 1047)] == [45, 50]
        index.flush()
        assert [seq_of(index.floor(1, seq)) for seq in (29, 30, 45, 49, 50, 99)] == [None, 30, 45, 45, 50, 51]
        assert [seq_of(index.floor_time(1, ms)) for ms in (1030, 1031, 1046, 1047)] == [29, 30, 45, 50]
        assert index.floor_time(1, 1029) is None


def test_many_removals_take_several_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.index.INDEX_DELETES_MAX", 10)
    with opened(tmp_path / "index") as index:
        for number in (1, 2):
            for seq in range(100):
                add(index, number, seq)
        index.flush()
        index.remove(1, 40)
        index.truncate(1, 59)
        index.drop(2)
        index.flush()
    with lmdb.open(str(tmp_path / "index"), max_dbs=2, lib_version=0) as environment:
        for name, expected in ((SEQ, 20), (TIME, 21)):
            handle = environment.open_db(name)
            with environment.begin(db=handle) as transaction:
                assert transaction.stat(handle)["entries"] == expected


def test_committed_by_itself_within_its_interval(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        import lmdb, time
        path, deadline = sys.argv[1], time.monotonic() + 20
        with lmdb.open(path, max_dbs=2, readonly=True, lib_version=0) as environment:
            handle = environment.open_db(b"seq", create=False)
            while time.monotonic() < deadline:
                with environment.begin() as transaction:
                    if transaction.stat(handle)["entries"]:
                        print("committed")
                        break
    """
    with opened(tmp_path / "index", interval_ms=10) as index:
        add(index, 1, 1)
        arguments = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "index"), ROOT]
        assert subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout == "committed\n"


def test_what_is_pending_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.index.INDEX_PENDING_MAX", 100)
    with opened(tmp_path / "index") as index:
        for seq in range(150):
            add(index, 1, seq)
        assert index.info()["pending"] == 100
        assert index.info()["dropped"] == 50
        assert seq_of(index.floor(1, 149)) == 99
        index.truncate(1, 49)
        assert index.info()["pending"] == 50
        index.flush()
        assert index.info()["pending"] == 0
        add(index, 1, 150)
        assert seq_of(index.floor(1, 150)) == 150


def test_many_pending_entries_bring_the_commit_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.index.INDEX_PENDING_WAKE", 10)
    with opened(tmp_path / "index") as index:
        for seq in range(10):
            add(index, 1, seq)
        with index._flushed:
            assert index._flushed.wait_for(lambda: index.info()["pending"] == 0, timeout=30)


def test_read_by_several_threads_while_it_commits(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with opened(tmp_path / "index", interval_ms=10, index_map_bytes=1 << 20) as index, ThreadPoolExecutor(2) as pool:

        def look() -> int:
            wrong = 0
            for seq in range(0, 30_000, 7):
                wrong += index.floor(1, seq) != SeqEntry(seq, SEGMENT, 1, seq * STEP)
            return wrong

        for seq in range(30_000):
            add(index, 1, seq)
        futures = [pool.submit(look) for _ in range(2)]
        for seq in range(30_000, 60_000):
            add(index, 1, seq)
            if seq % 3000 == 0:
                index.flush()
        assert [future.result() for future in futures] == [0, 0]
        assert index.info()["map_bytes"] > 1 << 20


@given(st.data())
@settings(max_examples=50)
def test_same_answers_as_a_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("model") / "index"
    seqs: dict[int, list[int]] = {1: [], 2: []}
    times: dict[int, list[tuple[int, int]]] = {1: [], 2: []}  # (running maximum, first seq)
    lows = {1: 0, 2: 0}
    with opened(path) as index:
        for step in range(data.draw(st.integers(1, 40))):
            number = data.draw(st.sampled_from([1, 2]))
            action = data.draw(st.sampled_from(["add", "add", "add", "flush", "remove", "truncate", "drop"]))
            if action == "add":
                seq = max([lows[number], *(seq + 1 for seq in seqs[number])]) + data.draw(st.integers(0, 5))
                time_ms = data.draw(st.integers(0, 60))
                add(index, number, seq, time_ms)
                seqs[number].append(seq)
                if time_ms > max((ms for ms, _ in times[number]), default=-1):
                    times[number].append((time_ms, seq))
            elif action == "flush":
                index.flush()
            elif action == "drop":
                index.drop(number)
                seqs[number], times[number], lows[number] = [], [], 0
            elif action == "remove":
                lows[number] = max(lows[number], data.draw(st.integers(0, 60)))
                index.remove(number, lows[number])
                seqs[number] = [seq for seq in seqs[number] if seq >= lows[number]]
            else:
                high = data.draw(st.integers(max(0, lows[number] - 1), 60))  # a log never ends before its start
                index.truncate(number, high)
                seqs[number] = [seq for seq in seqs[number] if seq <= high]
                times[number] = [item for item in times[number] if item[1] <= high]
            for seq in range(step % 5, 70, 5):
                assert seq_of(index.floor(number, seq)) == max(
                    (one for one in seqs[number] if one <= seq), default=None
                )
            last_below = max((item for item in times[number] if item[1] < lows[number]), default=(-1, 0))
            for time_ms in range(step % 5, 70, 5):
                expected = max((item for item in times[number] if item[0] < time_ms), default=None)
                found = index.floor_time(number, time_ms)
                if expected is None or expected >= last_below:
                    assert (found and (found.timestamp_ms, found.first_seq)) == expected
                else:
                    assert found is None or found.first_seq <= expected[1]  # may have been removed


# --- unusable environments ---


def broken(path: Path, how: str) -> None:
    data, rng = path / "data.mdb", random.Random(how)
    content = bytearray(data.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2 & ~4095]
    elif how == "cut in a meta page":
        content = content[:5000]
    elif how == "garbage":
        content = bytearray(rng.randbytes(len(content)))
    elif how == "zeros":
        content = bytearray(len(content))
    elif how == "garbage behind the meta pages":
        content[8192:] = rng.randbytes(len(content) - 8192)
        (path / "in-use").touch()
    elif how == "other format":
        raw_put(path, None, FORMAT_KEY, b"quintlog index 0")
        return
    elif how == "absurd map":
        content[136:144] = content[4096 + 136 : 4096 + 144] = (1 << 40).to_bytes(8, sys.byteorder)
    elif how == "a directory":
        data.unlink()
        data.mkdir()
        return
    data.write_bytes(content)


BROKEN = ["truncated", "cut in a meta page", "garbage", "zeros", "garbage behind the meta pages", "other format",
          "absurd map", "a directory"]  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_an_unusable_index_is_moved_aside_and_begun_anew(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "index"
    with opened(path) as index:
        for seq in range(2000):
            add(index, 1, seq)
    broken(path, how)
    with opened(path) as index:
        assert index.rebuilt
        assert index.floor(1, 1999) is None
        add(index, 1, 5)
    assert "is rebuilt" in caplog.text
    assert (tmp_path / "index.damaged-1" / "data.mdb").exists()
    with opened(path) as index:
        assert not index.rebuilt
        assert seq_of(index.floor(1, 1999)) == 5


def test_a_missing_index_is_begun_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        assert not index.rebuilt


def test_an_index_too_large_to_be_verified_after_an_unclean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "index") as index:
        add(index, 1, 1)
    (tmp_path / "index" / "in-use").touch()
    monkeypatch.setattr("engine.state.environment.LMDB_VERIFY_BYTES_MAX", 4096)
    with opened(tmp_path / "index") as index:
        assert index.rebuilt


def test_killed_while_committing(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.unit.engine.state.test_index import Index, SystemFiles, EngineConfig, add
        index = Index(Path(sys.argv[1]), SystemFiles(), EngineConfig(index_commit_interval_ms=10))
        for seq in range(50_000):
            add(index, 1, seq)
            if seq == 20_000:
                index.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "index"
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(path), ROOT]
    for _ in range(3):
        assert subprocess.run(arguments, timeout=60, check=False).returncode == -9
        with opened(path) as index:
            assert not index.rebuilt
            assert (seq_of(index.floor(1, 10**9)) or 0) >= 20_000
            assert seq_of(index.floor(1, 12_345)) == 12_345


def test_entries_of_another_form_are_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with opened(path) as index:
        add(index, 1, 1)
    key = (1).to_bytes(4, "big") + (50).to_bytes(8, "big")
    for value in (b"", bytes(23), bytes(24), bytes(25)):
        raw_put(path, SEQ, key, value)
        with opened(path) as index:
            assert index.floor(1, 50) is None
            assert seq_of(index.floor(1, 49)) == 1
    key = (1).to_bytes(4, "big") + (9000).to_bytes(8, "big")
    for value in (b"", bytes(15), bytes(16), bytes(17)):
        raw_put(path, TIME, key, value)
        with opened(path) as index:
            assert index.floor_time(1, 10_000) is None
            assert seq_of(index.floor_time(1, 9000)) == 1
    raw_put(path, SEQ, key[:11], bytes(24))
    with opened(path) as index:
        assert index.floor(1, 9000) is None
        index.drop(1)
        index.flush()
        assert index.floor(1, 9000) is None
        add(index, 1, 60)
        index.flush()
        assert seq_of(index.floor(1, 9000)) == 60


def test_what_fails_unexpectedly_does_not_end_the_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "index") as index:
        index.add(1, 1, -1, 1, 1, 1)  # no u64: cannot be packed
        index.flush()
        assert index.info()["dropped"] == 1
        assert "read-only until a restart" in caplog.text
        index.flush()
    index.flush()  # after close there is nothing to wait for
    index.close()


def test_a_second_open_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        with pytest.raises(LogLocked):
            Index(tmp_path / "index", SystemFiles(), EngineConfig())
        add(index, 1, 1)
        index.flush()


def test_no_index_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((DataDirectoryError, OSError)):
        Index(tmp_path / "file" / "index", SystemFiles(), EngineConfig())


def test_a_full_disk_gives_entries_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "index") as index:
        add(index, 1, 1)
        index.flush()
        with data_file_replaced(tmp_path / "index", "/dev/full", os.O_RDWR):
            add(index, 1, 2)
            index.flush()
        assert seq_of(index.floor(1, 2)) == 1
        assert index.info()["dropped"] == 1
        assert "given up" in caplog.text
        add(index, 1, 3)
        index.flush()
        assert seq_of(index.floor(1, 9)) == 3


def test_a_failed_commit_ends_it_but_not_the_answers(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        add(index, 1, 1)
        index.flush()
        with data_file_replaced(tmp_path / "index", "/dev/null", os.O_RDONLY):
            add(index, 1, 2)
            index.flush()
        add(index, 1, 3)
        index.flush()
        assert seq_of(index.floor(1, 9)) == 1
        assert index.info()["dropped"] == 2


def test_it_is_not_synced_further_than_its_integrity_needs(tmp_path: Path) -> None:
    with opened(tmp_path / "index") as index:
        flags = index._environment._environment.flags()
        assert [flags["sync"], flags["metasync"], flags["writemap"]] == [True, False, False]


def test_an_index_that_cannot_be_read_costs_nothing_but_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LMDB has given the environment up (it could not map the file again): records are stored, partitions opened."""
    with EngineLog(tmp_path / "d") as engine:
        fill(engine, 2, topic="closed")
        fill(engine, 2, topic="open")
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"], topic="open")
        index = engine.log.index
        index.flush()
        index._environment._environment.close()
        assert [index.floor(1, 5), index.floor_time(1, 5)] == [None, None]
        for topic in ("open", "closed", "new"):
            fill(engine, 2, topic=topic)
            partition = engine.partition(topic)
            assert len(engine.read(topic)) == partition.last_seq
            assert partition.seq_at_time(0) == 1
            assert partition.error is None
        for _ in range(3):
            engine.append([b"." * STEP])
            index.flush()
        assert index.info()["used_bytes"] == 0
    assert caplog.text.count("the index cannot be read") == 1
    assert caplog.text.count("given up") == 1
    with EngineLog(tmp_path / "d") as engine:
        assert len(engine.read("closed")) == 40

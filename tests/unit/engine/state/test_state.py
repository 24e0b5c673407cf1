"""The state store on real LMDB files: rounds, answers, checksums, and every way in which a commit fails."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from engine.errors import Corrupt, DataDirectoryError, DiskFull, EngineError, LogLocked, ReadOnly, TooLarge
from engine.files.system import SystemFiles
from engine.limits import SLICES_S, STATE_ROUND_BYTES_MAX, STATE_VALUE_BYTES_MAX
from engine.state.store import (
    Delete,
    DeleteAll,
    LmdbState,
    Put,
    StateReader,
    Submission,
    hashed_key,
    pack_value,
    unpack_value,
)
from tests.lmdb_state import data_file_replaced, opened, writing_held_up
from tests.processes import Started


def test_put_get_delete_and_reopen(tmp_path: Path) -> None:
    value = {"name": b"\xff\x00", "text": "é", "numbers": [1, 2**64 - 1, -(2**63)], "none": None, 7: 1.5}
    with opened(tmp_path / "state") as owner:
        assert owner.store.get(b"a") is None
        assert owner.submit(Put(b"a", value), Put(b"b", 1)) is None
        assert owner.store.get(b"a") == value
        assert owner.submit(Delete(b"b"), Delete(b"never there")) is None
        assert owner.store.get(b"b") is None
        assert owner.submit() is None
    with opened(tmp_path / "state", create=False) as owner:
        assert owner.store.get(b"a") == value
        assert owner.store.get(b"b") is None


def test_scan_is_sorted_limited_to_the_prefix_and_of_one_moment(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        owner.submit(*(Put(key, key) for key in (b"b/2", b"a/9", b"b/1", b"c", b"b0", b"b/")))
        assert list(owner.store.scan(b"b/")) == [(b"b/", b"b/"), (b"b/1", b"b/1"), (b"b/2", b"b/2")]
        assert list(owner.store.scan(b"x")) == []
        items = owner.store.scan(b"b/")
        owner.submit(Delete(b"b/1"), Put(b"b/2", b"new"))
        assert [value for _, value in items] == [b"b/", b"b/1", b"b/2"]
        assert [key for key, _ in owner.store.scan(b"")] == [b"a/9", b"b/", b"b/2", b"b0", b"c"]


def test_all_keys_of_a_prefix_go_together_and_no_others(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        owner.submit(*(Put(key, key) for key in (b"a", b"b/", b"b/1", b"b/\xff\xff", b"b0", b"c")))
        owner.submit(DeleteAll(b"x"), DeleteAll(b"d"), DeleteAll(b"b/"), Put(b"b/2", b"after it"))
        assert [key for key, _ in owner.store.scan(b"")] == [b"a", b"b/2", b"b0", b"c"]
        owner.submit(DeleteAll(b"c"), DeleteAll(b""))
        assert list(owner.store.scan(b"")) == []


def test_a_walk_goes_on_behind_what_was_given_whatever_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.store.WALK_KEYS", 2)
    with opened(tmp_path / "state") as owner:
        owner.submit(*(Put(key, key) for key in (b"a", b"b/", b"b/1", b"b/2", b"b/3", b"b/4", b"c")))
        walk = owner.store.walk(b"b/")
        assert next(walk) == (b"b/", b"b/")
        owner.submit(Delete(b"b/1"), Delete(b"b/2"), Put(b"b/3", b"new"))
        assert list(walk) == [(b"b/1", b"b/1"), (b"b/3", b"new"), (b"b/4", b"b/4")]
        assert list(owner.store.walk(b"x")) == []


def test_submissions_share_rounds_and_are_answered_in_order(tmp_path: Path) -> None:
    answers: list[int] = []
    with opened(tmp_path / "state") as owner:
        with writing_held_up(owner):
            for number in range(2000):
                owner.store.submit([Put(b"k", number)], lambda error, number=number: answers.append(number))
        owner.run()
        assert answers == list(range(2000))
        assert owner.store.get(b"k") == 1999
        assert 1 <= owner.store.rounds <= 2


def test_answers_of_several_rounds_keep_their_order_over_several_turns(tmp_path: Path) -> None:
    """The answers of the first round take longer than a turn may, and those of the second one are there meanwhile."""
    turns: deque[Callable[[], None]] = deque()
    answers: list[int] = []
    state = LmdbState(tmp_path / "state", turns.append, SystemFiles(), create=True)

    def first(_: EngineError | None) -> None:
        answers.append(1)
        end = time.perf_counter() + SLICES_S
        while time.perf_counter() < end:
            pass

    state._answer([Submission([], 0, first), Submission([], 0, lambda _: answers.append(2))], None)
    state._answer([Submission([], 0, lambda _: answers.append(3))], None)
    while turns:
        turns.popleft()()
    state.close()
    assert answers == [1, 2, 3]


def test_nothing_is_answered_by_the_caller_itself(tmp_path: Path) -> None:
    answers: list[EngineError | None] = []
    with opened(tmp_path / "state") as owner:
        owner.store.submit([Put(b"k", 1)], answers.append)
        call = owner.posted.get(timeout=30)
        assert answers == []
        assert owner.store.pending_bytes > 0
        call()
        assert answers == [None]
        assert owner.store.pending_bytes == 0


def test_an_answer_that_raises_costs_the_others_nothing(tmp_path: Path) -> None:
    answers: list[str] = []

    def fails(_: EngineError | None) -> None:
        raise RuntimeError("in the callback")

    with opened(tmp_path / "state") as owner:
        with writing_held_up(owner):
            owner.store.submit([Put(b"0", 0)], lambda _: answers.append("zero"))
            for callback in (lambda _: answers.append("one"), fails, lambda _: answers.append("three")):
                owner.store.submit([Put(b"k", 1)], callback)
        raised = 0
        while owner.store.pending_bytes:
            try:
                owner.posted.get(timeout=30)()
            except RuntimeError:
                raised += 1
        assert raised == 1
        assert answers == ["zero", "one", "three"]


def test_the_value_is_taken_when_submitted(tmp_path: Path) -> None:
    value = {"a": 1}
    with opened(tmp_path / "state") as owner:
        owner.store.submit([Put(b"k", value)])
        value["a"] = 2
        owner.run()
        assert owner.store.get(b"k") == {"a": 1}


def test_close_answers_everything_first(tmp_path: Path) -> None:
    answers: list[EngineError | None] = []
    with opened(tmp_path / "state") as owner:
        for number in range(100):
            owner.store.submit([Put(b"%d" % number, number)], answers.append)
        owner.store.close()
        while not owner.posted.empty():
            owner.posted.get()()
        assert answers == [None] * 100
        owner.store.close()
        with pytest.raises(ReadOnly, match="is closed"):
            owner.store.submit([Put(b"k", 1)])
        with pytest.raises(DataDirectoryError, match="cannot read"):
            owner.store.get(b"k")
    with opened(tmp_path / "state") as owner:
        assert sum(1 for _ in owner.store.scan(b"")) == 100


def test_limits_of_keys_and_values(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        assert owner.submit(Put(bytes(511), 1)) is None
        for key in (b"", bytes(512)):
            with pytest.raises(ValueError, match="1 to 511 are allowed"):
                owner.store.submit([Put(key, 1)])
        fits = bytes(STATE_VALUE_BYTES_MAX - 13)
        assert owner.submit(Put(b"k", fits)) is None
        with pytest.raises(TooLarge) as caught:
            owner.store.submit([Put(b"k", fits + b"\0")])
        assert caught.value.limit_bytes == STATE_VALUE_BYTES_MAX
        with pytest.raises(TooLarge) as caught:
            owner.store.submit([Put(b"%d" % number, fits) for number in range(5)])
        assert caught.value.limit_bytes == STATE_ROUND_BYTES_MAX
        assert owner.store.get(b"0") is None


def test_a_round_ends_at_its_size(tmp_path: Path) -> None:
    value = bytes(12 << 20)
    with opened(tmp_path / "state") as owner:
        with writing_held_up(owner):
            for number in range(12):
                owner.store.submit([Put(b"%d" % (number % 2), value)])
        owner.run()
        assert 2 <= owner.store.rounds <= 4
        assert owner.store.get(b"1") == value


def test_names_of_any_length_become_keys() -> None:
    keys = {hashed_key(b"s/", bytes(length)) for length in range(0, 5000, 7)}
    assert len(keys) == len(range(0, 5000, 7))
    assert {len(key) for key in keys} == {18}


def test_every_flipped_bit_of_a_value_is_found() -> None:
    stored = pack_value(b"key", {"a": [1, 2, 3]})
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="b'key'"):
            unpack_value(b"key", bytes(damaged), "state")


@pytest.mark.parametrize("stored", [b"", bytes(1), bytes(8), bytes(9), bytes(100)])
def test_zeros_and_cut_values_are_never_valid(stored: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack_value(b"key", stored, "state")


def test_a_value_under_another_key_is_found() -> None:
    with pytest.raises(Corrupt, match="b'other'"):
        unpack_value(b"other", pack_value(b"key", 1), "state")


def test_damaged_values_are_named_and_cost_no_others(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened(path) as owner:
        owner.submit(*(Put(b"k/%d" % number, number) for number in range(5)))
    with lmdb.open(str(path), lib_version=0) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"k/2", bytes(12))
        transaction.put(b"k/4", transaction.get(b"k/1"))
    with opened(path) as owner:
        with pytest.raises(Corrupt, match="b'k/2'") as caught:
            owner.store.get(b"k/2")
        assert caught.value.path == str(path)
        with pytest.raises(Corrupt, match="b'k/2'"):
            list(owner.store.scan(b"k/"))
        damaged: list[Corrupt] = []
        assert list(owner.store.scan(b"k/", damaged.append)) == [(b"k/0", 0), (b"k/1", 1), (b"k/3", 3)]
        assert list(owner.store.walk(b"k/")) == [(b"k/0", 0), (b"k/1", 1), (b"k/3", 3)]
        assert ["b'k/2'" in str(damaged[0]), "b'k/4'" in str(damaged[1]), len(damaged)] == [True, True, 2]
        assert owner.submit(Put(b"k/2", 2)) is None
        assert owner.store.get(b"k/2") == 2


def test_a_full_map_grows_between_transactions(tmp_path: Path) -> None:
    with opened(tmp_path / "state", map_bytes=64 << 10) as owner:
        for number in range(40):
            assert owner.submit(Put(b"%d" % number, bytes(16 << 10))) is None
        assert owner.submit(Put(b"large", bytes(3 << 20))) is None
        assert owner.store.info()["map_bytes"] >= 4 << 20
        assert sum(1 for _ in owner.store.scan(b"")) == 41
        assert owner.store.get(b"large") == bytes(3 << 20)


def test_a_map_at_its_limit_refuses_the_round_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.state.environment.MAP_BYTES_MAX", 256 << 10)
    with opened(tmp_path / "state", map_bytes=64 << 10) as owner:
        assert owner.submit(Put(b"a", 1)) is None
        error = owner.submit(Put(b"b", 2), Put(b"large", bytes(300 << 10)))
        assert isinstance(error, DiskFull)
        assert "cannot become more" in str(error)
        assert owner.store.error is None
        assert owner.store.get(b"b") is None
        assert owner.submit(Put(b"b", 3)) is None
        assert [owner.store.get(b"a"), owner.store.get(b"b")] == [1, 3]


def test_a_full_disk_refuses_the_round_and_recovers_by_itself(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        assert owner.submit(Put(b"a", 1)) is None
        with data_file_replaced(tmp_path / "state", "/dev/full", os.O_RDWR):
            for _ in range(3):
                error = owner.submit(Put(b"a", 2), Put(b"b", 2))
                assert isinstance(error, DiskFull)
                assert "free some" in str(error)
                assert [owner.store.get(b"a"), owner.store.get(b"b")] == [1, None]
        assert owner.store.error is None
        assert owner.submit(Put(b"a", 3)) is None
        assert [owner.store.get(b"a"), owner.store.get(b"b")] == [3, None]
    with opened(tmp_path / "state") as owner:
        assert owner.store.get(b"a") == 3


def test_a_failed_commit_ends_writing_until_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        assert owner.submit(Put(b"a", 1)) is None
        with data_file_replaced(tmp_path / "state", "/dev/null", os.O_RDONLY):
            error = owner.submit(Put(b"a", 2))
        assert type(error) is ReadOnly
        assert "until a restart" in error.reason
        assert owner.store.error is error
        # The disk would take it again, but what happened is not known: nothing more is tried.
        assert str(owner.submit(Put(b"a", 3))) == str(error)
        assert owner.store.get(b"a") == 1
    with opened(tmp_path / "state") as owner:
        assert owner.store.get(b"a") == 1
        assert owner.submit(Put(b"a", 4)) is None


FAILING_SYNC = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from engine.state.store import Put
    from tests.lmdb_state import opened
    with opened(Path(sys.argv[1])) as owner:
        errors = [owner.submit(Put(b"a", number)) for number in range(4)]
        print([type(error).__name__ for error in errors], owner.store.get(b"a"))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: strace injects the failure into another process")
def test_a_sync_that_fails_once_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened(path) as owner:
        assert owner.submit(Put(b"a", -1)) is None
    trace = tmp_path / "trace"
    root = str(Path(__file__).resolve().parents[4])
    result = subprocess.run(
        ["strace", "-f", "-o", str(trace), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=2",
         sys.executable, "-c", textwrap.dedent(FAILING_SYNC), str(path), root],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.stdout == "['NoneType', 'ReadOnly', 'ReadOnly', 'ReadOnly'] 0\n", result.stderr
    assert trace.read_text().count("fdatasync(") == 2
    with opened(path) as owner:
        assert owner.store.get(b"a") == 0
        assert owner.submit(Put(b"a", 5)) is None


def test_a_second_open_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        with pytest.raises(LogLocked, match="already open in this process"):
            LmdbState(tmp_path / "state", owner.call_soon_threadsafe, SystemFiles(), create=False)
        assert owner.submit(Put(b"a", 1)) is None


def test_a_state_too_large_to_be_verified_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "state") as owner:
        owner.submit(Put(b"a", 1))
    (tmp_path / "state" / "in-use").touch()
    monkeypatch.setattr("engine.state.environment.LMDB_VERIFY_BYTES_MAX", 4096)
    with opened(tmp_path / "state", create=False) as owner:
        assert "logtool verify" in caplog.text
        assert owner.store.get(b"a") == 1


def test_read_only_after_close(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as owner:
        owner.submit(Put(b"a", 1))
    reader = StateReader.open(tmp_path / "state")
    assert [reader.get(b"a"), list(reader.scan(b""))] == [1, [(b"a", 1)]]
    reader.close()


def test_a_reader_beside_the_writer_sees_what_is_committed(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from engine.state.store import StateReader
        reader = StateReader.open(Path(sys.argv[1]))
        for line in sys.stdin:
            print(reader.get(b"a"), len(list(reader.scan(b"k/"))), flush=True)
        reader.close()
    """
    root = str(Path(__file__).resolve().parents[4])
    with opened(tmp_path / "state", map_bytes=64 << 10) as owner:
        assert owner.submit(Put(b"a", 1)) is None
        arguments = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "state"), root]
        with Started(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def ask() -> str:
                process.stdin.write("\n")
                process.stdin.flush()
                return process.stdout.readline().strip()

            assert ask() == "1 0"
            assert owner.submit(Put(b"a", 2), *(Put(b"k/%d" % n, bytes(8192)) for n in range(100))) is None
            assert owner.store.info()["map_bytes"] > 64 << 10
            assert ask() == "2 100"
            process.stdin.close()
            assert process.wait(30) == 0
        with pytest.raises(DataDirectoryError, match="cannot open"):
            StateReader.open(tmp_path / "nothing")


def test_dead_readers_do_not_pin_pages(tmp_path: Path) -> None:
    code = """
        import lmdb, os, signal, sys
        environment = lmdb.open(sys.argv[1], readonly=True, lib_version=0)
        transaction = environment.begin()
        print("reading", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with opened(tmp_path / "state", reader_check_interval_ms=1) as owner:
        owner.submit(*(Put(b"%d" % number, bytes(4000)) for number in range(50)))
        arguments = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "state")]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        assert result.stdout == "reading\n"
        for _ in range(300):
            owner.submit(*(Put(b"%d" % number, bytes(4000)) for number in range(50)))
        assert owner.store.info()["used_bytes"] < 4 << 20

"""A partition and its housekeeping at the edges: what is refused, what fails, and what goes on."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.errors import DataDirectoryError, DiskFull, NotStored, ReadOnly, TooLarge
from engine.files.system import SystemFiles
from engine.inbox import Inbox
from engine.segments.batches import COMMITTED, FAILED, PENDING, outcome
from engine.state.store import Put
from tests.engine_log import SMALL, EngineLog, segments
from tests.hooked_files import HookedFiles

# --- appending


def test_no_records_are_refused(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        with pytest.raises(ValueError, match="no records"):
            engine.partition().append([])
        assert engine.log.context.backlog.write_batches == 0


def test_a_closed_partition_takes_nothing_until_it_is_open(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
    with EngineLog(tmp_path / "d") as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        partition = engine.log.partition(topic)
        with pytest.raises(NotStored, match="is not open yet"):
            partition.append([b"y"])
        opened: list[bool] = []
        partition.when_open(lambda: opened.append(True))
        partition.when_open(lambda: opened.append(True))
        engine.inbox.run_until(lambda: len(opened) == 2)
        engine.append([b"y"])
        assert engine.values() == [b"x", b"y"]


def test_records_that_were_put_and_never_registered_have_numbers_of_their_own(tmp_path: Path) -> None:
    """A caller that fails between put and appended: the next one's records must not get the same numbers."""
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        assert partition.writer(1).put(b"2", 0, 1)
        assert partition.writer(1 << 20).put(b"3", 0, 1)  # needs another write batch: the first is closed
        engine.settle(partition.appended(None, 1))
        engine.inbox.run_until(lambda: engine.log.context.backlog.write_batches == 0)
        assert [(record.seq, record.value) for record in engine.read()] == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_records_of_an_earlier_round_that_failed_are_told_of(tmp_path: Path) -> None:
    """A full disk refuses the first round, and there is room for the second: not all of the records are stored."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"before"])
        files.failing_once("write", ".log", errno.ENOSPC)
        write_batches = engine.partition().append_many([b"1" * 400_000, b"2" * 400_000, b"3" * 400_000])
        engine.inbox.run_until(lambda: outcome(write_batches)[0] != PENDING)
        assert [write_batch.state for write_batch in write_batches] == [FAILED, COMMITTED, COMMITTED]
        state, error = outcome(write_batches)
        assert state == FAILED
        assert isinstance(error, DiskFull)
        assert [value[:1] for value in engine.values()] == [b"b", b"2", b"3"]


def test_waiters_of_everything_that_fails_are_told(tmp_path: Path) -> None:
    class Waiter:
        rounds = 0

        def round_done(self) -> None:
            self.rounds += 1

    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        waiter = Waiter()
        write_batch = partition.append([b"2"], waiter=waiter)
        behind = partition.append([b"3"], waiter=waiter)
        partition.stop_writing(ReadOnly("the disk failed"))
        engine.settle(write_batch)
        engine.settle(behind)
        engine.inbox.run_pending()
        assert behind.state == FAILED
        assert waiter.rounds >= 1


def test_a_waiter_that_raises_costs_no_other_its_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Waiter:
        is_told = False

        def round_done(self) -> None:
            self.is_told = True
            raise RuntimeError("a defect")

    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        waiters = [Waiter() for _ in range(3)]
        for waiter in waiters:
            partition.append([b"x"], waiter=waiter)
        engine.inbox.run_until(lambda: waiters[-1].is_told)
        assert all(waiter.is_told for waiter in waiters)
        engine.append([b"y"])
    assert caplog.text.count("RuntimeError: a defect") == 3


def test_numbers_that_cannot_be_reserved_are_not_given(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=TopicConfig(durability="never")) as engine:
        submit = engine.log.state.submit

        def refusing(ops: Any, done: Any = None) -> None:
            if any(isinstance(op, Put) and op.key.startswith(b"r/") for op in ops):
                engine.inbox.call_soon_threadsafe(lambda: done(DiskFull("no space")))
            else:
                submit(ops, done)

        engine.log.state.submit = refusing  # type: ignore[method-assign]
        write_batch = engine.settle(engine.partition().append([b"1"]))
        assert write_batch.state == FAILED
        assert "cannot reserve numbers" in str(write_batch.error)
        engine.log.state.submit = submit  # type: ignore[method-assign]
        engine.append([b"2"])
        assert engine.values() == [b"2"]


def test_numbers_are_reserved_once_at_a_time_and_rounds_wait_for_it(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=TopicConfig(durability="never")) as engine:
        submit = engine.log.state.submit
        asked: list[Any] = []

        def held_up(ops: Any, done: Any = None) -> None:
            if any(isinstance(op, Put) and op.key.startswith(b"r/") for op in ops):
                asked.append((ops, done))
            else:
                submit(ops, done)

        engine.log.state.submit = held_up  # type: ignore[method-assign]
        partition = engine.partition()
        first = partition.append([b"1"])
        engine.inbox.run_until(lambda: bool(asked))
        second = partition.append([b"2"])
        engine.inbox.run_pending()
        assert len(asked) == 1
        assert (first.state, second.state) == (PENDING, PENDING)
        engine.log.state.submit = submit  # type: ignore[method-assign]
        submit(*asked[0])
        engine.settle(second)
        assert engine.values() == [b"1", b"2"]


def test_a_bound_that_is_durable_when_nothing_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised when half of it is used up, long before a record has to wait."""
    monkeypatch.setattr("engine.partitions.partition.SEQ_RESERVATION", 10)
    with EngineLog(tmp_path / "d", topic=TopicConfig(durability="never")) as engine:
        for number in range(30):
            engine.append([b"%d" % number])
            engine.inbox.run_until(lambda: engine.log.state.pending_bytes == 0)
        engine.image(tmp_path / "crashed")
    with EngineLog(tmp_path / "crashed") as engine:
        engine.append([b"next"])
        assert engine.read()[-1].seq > 30, "no number that a reader may have seen is given again"


def test_a_topic_whose_number_is_refused_is_tried_again(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        number = engine.log.catalog.number
        engine.log.catalog.number = lambda topic, index, done: engine.inbox.call_soon_threadsafe(
            lambda: done(DiskFull("full"))
        )  # type: ignore[method-assign,assignment]
        write_batch = engine.settle(partition.append([b"1"]))
        assert write_batch.state == FAILED
        assert isinstance(write_batch.error, DiskFull)
        engine.log.catalog.number = number  # type: ignore[method-assign]
        engine.append([b"2"])
        assert [(record.seq, record.value) for record in engine.read()] == [(2, b"2")]


def test_files_that_turn_up_while_they_are_to_be_made(tmp_path: Path) -> None:
    """Between looking and making, somebody puts a backup in place: its records keep their numbers."""
    with EngineLog(tmp_path / "other") as engine:
        engine.append([b"%d" % number for number in range(5)])
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        directory = tmp_path / "d" / "topics" / "1" / "0"

        def hook(call: str, path: Path) -> None:
            if (call, path.name) == ("sync_data", "topic.json.new") and not directory.exists():
                directory.parent.mkdir(exist_ok=True)
                os.rename(tmp_path / "other" / "topics" / "1" / "0", directory)

        files.hook = hook
        write_batch = engine.settle(partition.append([b"too early"]))
        assert write_batch.state == FAILED
        assert "publish again" in str(write_batch.error)
        engine.append([b"5"])
        assert engine.values() == [b"0", b"1", b"2", b"3", b"4", b"5"]


# --- housekeeping


def test_graves_of_a_deleted_topic_go_with_it(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        for number in range(6):
            engine.append([b"%d" % number * 20_000])
        partition = engine.partition()
        partition.trim(4)
        assert engine.log.parts.removal
        deleted: list[object] = []
        engine.log.catalog.delete(partition.topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        engine.log.housekeeping.clean()
        assert not len(engine.log.parts.removal)
        engine.inbox.run_until(lambda: not (tmp_path / "d" / "topics" / "1").exists())


def test_a_topic_deleted_between_turns_of_a_pass(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"t", partition_count=3)
        for index in range(3):
            engine.append([b"x"], index=index)
        steps = engine.log.housekeeping._pass()
        next(steps)
        deleted: list[object] = []
        topic = engine.partition().topic
        engine.log.catalog.delete(topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        for _ in steps:
            pass
        assert engine.log.housekeeping.failing == {}


def test_watermarks_that_cannot_be_synced_are_told_once_and_when_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files, watermarks_sync_interval_ms=10) as engine:
        engine.append([b"1"])
        failed = threading.Event()

        def hook(call: str, path: Path) -> None:
            if (call, path.name) == ("sync_data", "watermarks"):
                if failed.is_set():
                    again.set()
                failed.set()
                raise OSError(errno.EIO, "Input/output error")

        again = threading.Event()
        with caplog.at_level(logging.ERROR):
            files.hook = hook
            engine.append([b"2"])
            assert again.wait(30)
        files.hook = lambda call, path: None
        assert caplog.text.count("cannot sync watermarks") == 1
        deadline = time.monotonic() + 30
        while engine.log.watermarks.dirty:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)


def test_watermarks_that_cannot_be_synced_do_not_stop_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    engine = EngineLog(tmp_path / "d", files=files)
    engine.append([b"1"])
    files.failing("sync_data", "watermarks")
    with caplog.at_level(logging.ERROR):
        engine.close()
    assert "cannot sync watermarks" in caplog.text
    with EngineLog(tmp_path / "d") as again:
        assert again.values() == [b"1"]


# --- the log


def test_directories_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(DataDirectoryError, match="cannot use data directory"):
        EngineLog(tmp_path / "file" / "d")
    files = HookedFiles()
    files.failing("sync_dir", "topics")
    with pytest.raises(DataDirectoryError, match="Input/output error"):
        EngineLog(tmp_path / "d", files=files)
    EngineLog(tmp_path / "d").close()


def test_what_was_opened_is_closed_again_when_the_rest_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("engine.log.Housekeeping", broken)
        with pytest.raises(RuntimeError):
            EngineLog(tmp_path / "d")
    with EngineLog(tmp_path / "d") as engine:  # neither the lock nor an environment is held
        engine.append([b"1"])


def test_a_partition_whose_files_cannot_be_looked_for_is_not_stored(tmp_path: Path) -> None:
    class Failing(SystemFiles):
        broken = False

        def exists(self, path: Path) -> bool:
            if self.broken:
                raise OSError(errno.EACCES, "Permission denied")
            return super().exists(path)

    files = Failing()
    with EngineLog(tmp_path / "d", files=files) as engine:
        topic = engine.log.catalog.create(b"t")
        files.broken = True
        with pytest.raises(NotStored, match="Permission denied"):
            engine.log.partition(topic)
        files.broken = False
        engine.append([b"1"])


def test_numbers_of_lost_partitions_come_from_the_newest_header_that_can_be_read(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        engine.append([b"x"], topic="first")
        for number in range(6):
            engine.append([b"%d" % number * 20_000])
    for file in (tmp_path / "d" / "state").iterdir():
        file.unlink()
    newest = segments(tmp_path / "d", 2)[-1]
    content = newest.read_bytes()
    newest.write_bytes(bytes(20) + content[20:])
    newest.with_name("00000000000000000999.log").symlink_to("nowhere")
    with EngineLog(tmp_path / "d", topic=SMALL) as engine:
        topic = engine.log.catalog.get(b"t")
        assert topic is not None
        assert topic.numbers == {0: 2}
        newest.with_name("00000000000000000999.log").unlink()
        assert len(engine.read()) == 6


def test_many_readers_are_woken_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
        partition = engine.partition()
        woken: list[int] = []
        for number in range(5):
            partition.read(2, 1000, lambda number=number: woken.append(number))  # type: ignore[misc]
        turns: list[int] = []
        slices, post = engine.log.slices, engine.inbox.call_soon_threadsafe
        slices.turn_of._call_soon = lambda callback: (turns.append(len(woken)), post(callback))
        engine.append([b"2"])
        engine.inbox.run_until(lambda: len(woken) == 5)
        assert {1, 3, 5} <= set(turns)  # the first question of a turn starts its clock


def test_an_inbox_gives_up_when_nothing_happens() -> None:
    inbox = Inbox()
    with pytest.raises(TimeoutError, match="nothing happened within"):
        inbox.run_until(lambda: False, timeout_s=0.01)


def test_an_opening_that_meets_a_defect_is_an_error_of_that_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"1"])
    with EngineLog(tmp_path / "d") as engine:

        def broken(*_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
            patch.setattr("engine.partitions.file_worker.recover_partition", broken)
            with pytest.raises(DataDirectoryError, match="internal error while opening"):
                engine.partition()
        assert engine.partition().is_open, "another attempt is made at the next use"
        assert engine.values() == [b"1"]


def test_a_write_batch_knows_its_state(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        assert engine.append([b"x"]).state == COMMITTED
        assert engine.log.now_ms() > 1_600_000_000_000


def test_a_first_record_that_is_large_by_its_headers_gets_room_of_its_own(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"small"])
        wide = (b"n" * 3000, b"v" * 9000)
        engine.append([b"a", b"b"], headers=[wide, wide], keys=[b"k" * 255, b""])
        assert [record.headers for record in engine.read()] == [(), wide, wide]
        partition = engine.partition()
        deleted: list[object] = []
        engine.log.catalog.delete(partition.topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        partition.stop_writing(ReadOnly("too late"))
        assert "was deleted" in str(partition.error)


def test_a_partition_directory_without_segments_is_no_partition(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.log.catalog.create(b"t", partition_count=3)
        engine.append([b"x"])
        for index, name in ((1, "notes.txt"), (2, "00000000000000000001.log")):
            directory = tmp_path / "d" / "topics" / "1" / str(index)
            directory.mkdir()
            (directory / name).write_bytes(b"no segment")
        assert engine.partition(index=1).last_seq == 0
        engine.append([b"y"], index=2)
        assert engine.values(index=2) == [b"y"], "a header that cannot be read gives no number"


@pytest.mark.parametrize("options", [{"keys": [b""] * 9 + [b"k" * 256]}, {"headers": [()] * 9 + [(b"",) * (1 << 24)]}])
def test_records_that_cannot_be_appended_take_none_of_the_others_along(tmp_path: Path, options: dict[str, Any]) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        with pytest.raises((ValueError, TooLarge)):
            partition.append_many([b"x" * 100_000] * 10, **options)
        assert not engine.log.context.backlog.write_batches
        assert partition.last_seq == 0
        engine.append([b"1"])
        assert engine.values() == [b"1"]


@pytest.mark.parametrize("ask", ["append", "read", "transaction"])
def test_why_nothing_can_be_stored_keeps_nothing_of_those_who_were_told(tmp_path: Path, ask: str) -> None:
    """An error that is raised remembers who raised it, and what they hold."""
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        engine.append([b"1"])
        if ask == "read":
            partition.removed(NotStored("the topic was deleted"))
        else:
            partition.stop_writing(ReadOnly("the disk has failed"))
        asking = {
            "append": lambda: partition.append([b"x"]),
            "read": lambda: partition.read(1, 100, None),
            "transaction": lambda: engine.log.transaction().append(partition, b"x"),
        }
        with pytest.raises(NotStored) as told:
            asking[ask]()
        assert (type(told.value), str(told.value)) == (type(partition.error), str(partition.error))
        assert partition.error is not None
        assert partition.error.__traceback__ is None

"""Dead letters on their way: records that are gone, topics that are not there yet, are not allowed, or fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.cursors.cursor import Cursor
from engine.cursors.dead_letters import DeadLetters, Job, dead_letter_topic
from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.policies import CursorPolicy
from engine.cursors.table import IDLE_MS, SWEEP_MS
from engine.errors import ReadOnly
from engine.files.system import SystemFiles
from engine.formats.record import Record
from engine.limits import DEAD_LETTERS_PENDING_MAX, TOPIC_NAME_BYTES_MAX
from engine.partitions.partition import Partition
from engine.segments.batches import WriteBatch
from tests.cursor_log import OWNER, CursorLog, numbered
from tests.damage import flip_in
from tests.engine_log import SMALL, delete, fill, segments
from tests.hooked_files import ColdFiles, HookedFiles

POLICY = CursorPolicy(DeliveryPolicy(deliveries_max=1), dead_letter_suffix=b".dead")


def opened(path: Path, topic: TopicConfig | None = None, files: SystemFiles | None = None) -> CursorLog:
    return CursorLog(path, topic, POLICY, files)


def settle(log: CursorLog) -> None:
    """Until no dead letter is on its way."""
    log.engine.inbox.run_until(lambda: not len(log.store.dead_letters))


def origins(log: CursorLog, topic: str = "t.dead") -> list[int]:
    """The numbers that the dead letters had."""
    return [int(record.headers[3]) for record in log.engine.read(topic)]


def test_records_and_their_topic_are_read_from_the_disk_again(tmp_path: Path) -> None:
    log = opened(tmp_path / "d", SMALL, ColdFiles())
    cursor = log.subscribe()
    log.engine.append([b"in front"], "t.dead", headers=[(b"", b"", b"", b"0")])
    log.restart()
    cursor = log.get(cursor)
    fill(log.engine, 30)
    log.seqs(cursor, 3)
    forget_read_batches(log)
    assert not log.engine.log.partition(log.engine.log.catalog.get(b"t.dead")).is_open
    log.tick(1000)
    settle(log)
    assert origins(log) == [0, 1, 2, 3]
    log.close()


def forget_read_batches(log: CursorLog) -> None:
    """Has another cursor read so much that no read batch of others is left."""
    log.store.read_batches._bytes_max = 1
    other = log.subscribe("other")
    log.engine.append([b"x"], "other")
    log.seqs(other)


def test_what_retention_removes_meanwhile_is_no_dead_letter(tmp_path: Path) -> None:
    log = opened(tmp_path / "d", SMALL)
    cursor = log.subscribe()
    partition = fill(log.engine, 10)
    log.seqs(cursor, 3)
    forget_read_batches(log)
    log.clock.now_ms += 1000
    cursor.fall_due(log.clock.now_ms)
    assert len(log.store.dead_letters) == 1
    partition.trim(51)
    settle(log)
    assert cursor.deliveries.unacknowledged == 0
    assert log.engine.log.catalog.get(b"t.dead") is None
    log.close()


@pytest.mark.parametrize("damaged", [1, 2, 3, 4])
def test_what_damage_took_is_no_dead_letter(tmp_path: Path, damaged: int) -> None:
    """The beginning of a run, its middle, the end of its segment, or its end."""
    log = opened(tmp_path / "d", SMALL)
    cursor = log.subscribe()
    for row in range(1, 4):
        log.engine.append([b"round %d, %d" % (row, k) for k in range(10)])
    log.engine.log.committer.roll_next(log.engine.partition())
    log.engine.append([b"round 4, %d" % k for k in range(10)])
    assert log.seqs(cursor) == list(range(1, 41))
    fill(log.engine, 30)
    forget_read_batches(log)
    flip_in(segments(tmp_path / "d")[damaged // 4], b"round %d, 5" % damaged)
    log.tick(1000)
    settle(log)
    gone = range(damaged * 10 - 9, damaged * 10 + 1)
    assert origins(log) == [seq for seq in range(1, 41) if seq not in gone]
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_a_name_without_room_for_the_suffix_is_shortened(tmp_path: Path) -> None:
    names = ["n" * (TOPIC_NAME_BYTES_MAX - 1) + end for end in "ab"]
    log = opened(tmp_path / "d")
    for name in names:
        cursor = log.subscribe(name)
        log.engine.append(numbered(1, 3), name)
        log.seqs(cursor)
        log.tick(1000)
        settle(log)
        assert cursor.deliveries.unacknowledged == 0
        assert origins(log, dead_letter_topic(name.encode(), b".dead").decode()) == [1, 2, 3]
    assert log.store.totals(OWNER).dead_letters == 6
    log.close()


@pytest.mark.parametrize("length", range(TOPIC_NAME_BYTES_MAX - 3, TOPIC_NAME_BYTES_MAX + 1))
def test_a_shortened_name_is_text_if_the_name_was(length: int) -> None:
    name = ("x" * (length % 3) + "\u20ac" * (length // 3)).encode()
    assert len(name) == length
    short = dead_letter_topic(name, b".dead.\xc3\xa9")
    assert short.decode().endswith(".dead.\u00e9")
    assert TOPIC_NAME_BYTES_MAX - 3 <= len(short) <= TOPIC_NAME_BYTES_MAX
    assert dead_letter_topic(b"t", b".dead") == b"t.dead"
    assert len(dead_letter_topic(b"\x80" * TOPIC_NAME_BYTES_MAX, b".dead")) <= TOPIC_NAME_BYTES_MAX


def test_a_record_as_large_as_records_may_be_takes_nobody_along(tmp_path: Path) -> None:
    """Its headers make its dead letter larger than that."""
    log = opened(tmp_path / "d", TopicConfig(record_bytes_max=1000))
    cursor = log.subscribe()
    log.engine.append([b"x" * 1000, *numbered(2, 10)])
    assert len(log.seqs(cursor)) == 10
    log.tick(1000)
    settle(log)
    assert origins(log) == list(range(1, 11))
    assert [len(value) for value in log.engine.values("t.dead")][:2] == [1000, 1]
    assert log.store.totals(OWNER).dead_letters == 10
    log.close()


def test_a_record_that_cannot_be_a_dead_letter_costs_itself_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "d")
    cursor = log.subscribe()
    log.engine.append([b"1", b"2", b"3"], headers=[(), (b"a", b"x" * 2000), ()])
    log.seqs(cursor)
    put = DeadLetters._append

    def refusing(self: DeadLetters, target: Partition, cursor: Cursor, job: Job, record: Record) -> WriteBatch:
        if record.headers:  # such headers would fill hundreds of MB
            raise ValueError("headers larger than an extension can be")
        return put(self, target, cursor, job, record)

    monkeypatch.setattr(DeadLetters, "_append", refusing)
    log.tick(1000)
    settle(log)
    assert origins(log) == [1, 3]
    assert "record 2 is dropped, it cannot be a dead letter: headers" in caplog.text
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_dead_letters_wait_for_room_for_their_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = CursorLog(tmp_path / "d", None, POLICY, topics_max=2)
    cursor = log.subscribe()
    other = log.engine.partition("other")
    log.engine.append(numbered(1, 3))
    log.seqs(cursor)
    for _ in range(30):
        log.tick(1000)
    assert cursor.deliveries.unacknowledged == len(log.store.dead_letters) + 2 == 3, "one run of three records"
    assert caplog.text.count("dead letters have to wait: there are 2 topics") == 1
    log.clock.now_ms += IDLE_MS + SWEEP_MS
    log.tick()
    assert log.store.loaded_cursor(cursor.id) is cursor, "it may not be let go of"
    delete(log.engine, other)
    log.tick(1000)
    settle(log)
    assert origins(log) == [1, 2, 3]
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_dead_letters_wait_for_a_topic_that_is_not_made_by_itself(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", None, POLICY, auto_create=False)
    log.engine.log.catalog.create(b"t")
    cursor = log.subscribe()
    log.engine.append(numbered(1, 3))
    log.seqs(cursor)
    log.tick(1000)
    log.tick(1000)
    assert cursor.deliveries.unacknowledged == 3
    log.engine.log.catalog.create(b"t.dead")
    log.tick(1000)
    settle(log)
    assert origins(log) == [1, 2, 3]
    log.close()


def test_dead_letters_wait_for_records_that_cannot_be_read_now(tmp_path: Path) -> None:
    files = HookedFiles()
    log = opened(tmp_path / "d", files=files)
    cursor = log.subscribe()
    log.engine.append(numbered(1, 3))
    log.restart()
    cursor = log.get(cursor)
    log.engine.partition()
    assert log.seqs(cursor) == [1, 2, 3]
    forget_read_batches(log)
    log.engine.log.parts.fetched.clear()
    log.engine.log.handles.relieve()
    files.failing("open", ".log")
    for _ in range(3):
        log.tick(1000)
        log.engine.inbox.run_until(lambda: not log.engine.partition().read_state.waiting)
    assert cursor.deliveries.unacknowledged == 3
    files.hook = lambda call, path: None
    log.tick(1000)
    settle(log)
    assert origins(log) == [1, 2, 3]
    log.close()


def test_what_retention_leaves_of_a_run_becomes_dead_letters(tmp_path: Path) -> None:
    log = opened(tmp_path / "d", SMALL)
    cursor = log.subscribe()
    partition = fill(log.engine, 10)
    log.seqs(cursor, 3)
    forget_read_batches(log)
    log.clock.now_ms += 1000
    cursor.fall_due(log.clock.now_ms)
    partition.trim(3)
    settle(log)
    assert origins(log) == [3]
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_what_a_negative_acknowledgement_gives_up_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    log = opened(tmp_path / "d")
    cursor = log.subscribe()
    log.engine.append(numbered(1, 3))
    log.seqs(cursor)
    assert cursor.give_back(2, 2, log.clock.now_ms) == 1
    log.engine.inbox.run_until(lambda: log.store.totals(OWNER).dead_letters == 1)
    assert origins(log) == [2]
    assert cursor.deliveries.unacknowledged == 2
    log.close()


def test_dead_letters_on_their_way_settle_nothing_behind_a_reset(tmp_path: Path) -> None:
    """Some are queued, some are being stored; what they were is in flight again."""
    log = opened(tmp_path / "d")
    cursor = log.subscribe()
    log.engine.append(numbered(1, DEAD_LETTERS_PENDING_MAX + 10))
    log.seqs(cursor)
    log.clock.now_ms += 1000
    cursor.fall_due(log.clock.now_ms)
    log.engine.partition("t.dead")
    log.store.dead_letters.work()
    assert log.engine.log.context.backlog.write_batches
    cursor.reset(0)
    assert len(log.seqs(cursor, 5)) == 5
    settle(log)
    assert cursor.deliveries.unacknowledged == 5
    assert origins(log) == list(range(1, DEAD_LETTERS_PENDING_MAX + 1)), "the others are in flight, or will be"
    log.close()


def test_dead_letters_wait_for_a_disk_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HookedFiles()
    log = opened(tmp_path / "d", files=files)
    cursor = log.subscribe()
    log.subscribe("t.dead")
    log.engine.append([b"other"], "t.dead", headers=[(b"", b"", b"", b"0")])
    log.engine.append(numbered(1, 3))
    log.seqs(cursor)
    dead = log.engine.partition("t.dead")

    def full(call: str, path: Path) -> None:
        if call == "write" and path.parent == dead.active_segment.directory:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    files.hook = full
    failures = dead.failing
    log.tick(1000)
    log.engine.inbox.run_until(lambda: dead.failing is not failures)
    assert cursor.deliveries.unacknowledged == 3
    assert log.store.totals(OWNER).dead_letters == 0
    files.hook = lambda call, path: None
    log.tick(100)
    settle(log)
    assert sorted(origins(log)) == [0, 1, 2, 3]
    assert log.store.totals(OWNER).dead_letters == 3
    log.close()


def test_dead_letters_that_wait_hold_up_no_other_subscription(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(tmp_path / "d")
    first, second = log.subscribe("a"), log.subscribe("b")
    log.engine.partition("a.dead").stop_writing(ReadOnly("the disk is broken"))
    for topic, cursor in (("a", first), ("b", second)):
        log.engine.append(numbered(1, 3), topic)
        assert log.seqs(cursor) == [1, 2, 3]
    with caplog.at_level(logging.WARNING):
        log.tick(1000)
        log.engine.inbox.run_until(lambda: not second.deliveries.unacknowledged)
        log.tick()
        log.tick()
    assert origins(log, "b.dead") == [1, 2, 3]
    assert first.deliveries.unacknowledged == 3
    assert caplog.text.count("dead letters have to wait") == 1
    log.close()


def test_a_full_disk_is_not_asked_for_dead_letters_without_a_pause(tmp_path: Path) -> None:
    files = HookedFiles()
    log = opened(tmp_path / "d", files=files)
    cursor = log.subscribe()
    dead = log.engine.partition("t.dead")
    log.engine.append([b"other"], "t.dead")
    log.engine.append(numbered(1, 3))
    log.seqs(cursor)
    files.failing("write", str(dead.active_segment.path), errno.ENOSPC)
    log.tick(1000)
    log.engine.inbox.run_until(lambda: dead.failing is not None and not log.engine.log.context.backlog.write_batches)
    log.engine.inbox.run_pending()
    assert log.engine.log.context.backlog.write_batches == 0, "the next attempt is the clock's"
    files.hook = lambda call, path: None
    log.tick()
    settle(log)
    assert len(log.engine.values("t.dead")) == 4
    log.close()


def test_dead_letters_wait_for_a_partition_that_cannot_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = HookedFiles()
    log = opened(tmp_path / "d", files=files)
    cursor = log.subscribe()
    log.engine.append([b"in front"], "t.dead", headers=[(b"", b"", b"", b"0")])
    log.engine.append([b"a"])
    log.restart()
    cursor = log.get(cursor)
    log.engine.partition()
    assert log.seqs(cursor) == [1]
    files.failing("open", ".log", errno.EACCES)
    with caplog.at_level(logging.WARNING):
        log.tick(1000)
        log.engine.inbox.run_until(lambda: "dead letters have to wait" in caplog.text)
    assert cursor.deliveries.unacknowledged == 1
    files.hook = lambda call, path: None
    log.restart()
    cursor = log.get(cursor)
    log.engine.partition()
    log.seqs(cursor)
    log.tick(1000)
    settle(log)
    assert origins(log) == [0, 1]
    log.close()


def test_acknowledged_while_its_dead_letter_is_stored(tmp_path: Path) -> None:
    log = opened(tmp_path / "d")
    cursor = log.subscribe()
    log.engine.append([b"a", b"b"])
    log.seqs(cursor)
    log.clock.now_ms += 1000
    log.store.dead_letters.work()
    cursor.fall_due(log.clock.now_ms)
    log.store.dead_letters.work()
    assert cursor.acknowledge(1, 2) == 2
    settle(log)
    assert origins(log) == [1, 2], "too late to take it back"
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_dead_letters_of_several_topics_do_not_get_mixed_up(tmp_path: Path) -> None:
    """They are moved one behind the other, in rounds of their own, and have the same numbers."""
    log = opened(tmp_path / "d")
    topics = [f"t{n}" for n in range(5)]
    cursors = [log.subscribe(topic) for topic in topics]
    values = {topic: [b"%d of %s" % (n, topic.encode()) for n in (1, 2)] for topic in topics}
    for topic, cursor in zip(topics, cursors, strict=True):
        log.engine.append(values[topic], topic)
        assert log.seqs(cursor) == [1, 2]
    log.tick(1000)
    settle(log)
    for topic, cursor in zip(topics, cursors, strict=True):
        assert log.engine.values(f"{topic}.dead") == values[topic]
        assert origins(log, f"{topic}.dead") == [1, 2]
        assert cursor.deliveries.unacknowledged == 0
    log.close()

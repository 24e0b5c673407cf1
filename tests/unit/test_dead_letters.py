"""Dead letters on their way: records that are gone, topics that are not there yet, are not allowed, or fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.store import CursorPolicy
from engine.errors import ReadOnly
from engine.files.system import SystemFiles
from engine.limits import TOPIC_NAME_BYTES_MAX
from engine.partitions import retention
from tests.cursor_log import OWNER, CursorLog, numbered
from tests.damage import flip_in
from tests.engine_log import SMALL, fill, segments
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
    forget_slabs(log)
    assert not log.engine.log.partition(log.engine.log.catalog.get(b"t.dead")).is_open
    log.tick(1000)
    settle(log)
    assert origins(log) == [0, 1, 2, 3]
    log.close()


def forget_slabs(log: CursorLog) -> None:
    """Has another cursor read so much that no slab of others is left."""
    log.store.slabs._bytes_max = 1
    other = log.subscribe("other")
    log.engine.append([b"x"], "other")
    log.seqs(other)


def test_what_retention_removes_meanwhile_is_no_dead_letter(tmp_path: Path) -> None:
    log = opened(tmp_path / "d", SMALL)
    cursor = log.subscribe()
    partition = fill(log.engine, 10)
    log.seqs(cursor, 3)
    forget_slabs(log)
    log.clock.now_ms += 1000
    cursor.fall_due(log.clock.now_ms)
    assert len(log.store.dead_letters) == 1
    retention.trim(log.engine.log, partition, 51)
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
    log.engine.partition().roll_wanted = True
    log.engine.append([b"round 4, %d" % k for k in range(10)])
    assert log.seqs(cursor) == list(range(1, 41))
    fill(log.engine, 30)
    forget_slabs(log)
    flip_in(segments(tmp_path / "d")[damaged // 4], b"round %d, 5" % damaged)
    log.tick(1000)
    settle(log)
    gone = range(damaged * 10 - 9, damaged * 10 + 1)
    assert origins(log) == [seq for seq in range(1, 41) if seq not in gone]
    assert cursor.deliveries.unacknowledged == 0
    log.close()


def test_a_topic_that_cannot_be_made_costs_the_dead_letters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = "n" * TOPIC_NAME_BYTES_MAX
    log = opened(tmp_path / "d")
    cursor = log.subscribe(name)
    log.engine.append(numbered(1, 3), name)
    log.seqs(cursor)
    with caplog.at_level(logging.ERROR):
        log.tick(1000)
        settle(log)
    assert "records 1 to 3 are dropped: " in caplog.text
    assert cursor.deliveries.unacknowledged == 0
    assert log.store.totals(OWNER).dead_letters == 0
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
    log.engine.inbox.run_until(lambda: dead.failing is not None and not log.engine.log.pending_chunks)
    log.engine.inbox.run_posted()
    assert log.engine.log.pending_chunks == 0, "the next attempt is the clock's"
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

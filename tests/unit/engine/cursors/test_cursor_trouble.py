"""Cursors whose records cannot be had: removed, damaged, not decodable, on a disk that fails; gaps in the numbers."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.documents import entry_item
from engine.cursors.policies import CursorPolicy
from engine.errors import EngineError
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from tests.cursor_log import OWNER, CursorLog
from tests.damage import flip_in
from tests.engine_log import SMALL, fill, segments
from tests.hooked_files import ColdFiles


def test_a_cursor_reset_to_before_the_start_of_the_log_goes_on_there(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", SMALL)
    cursor = log.subscribe()
    partition = fill(log.engine, 10)
    partition.trim(51)
    assert log.seqs(cursor, 1) == [51]
    lost = cursor.lost
    cursor.reset(2)
    assert log.seqs(cursor, 3) == [51, 52, 53]
    assert cursor.lost - lost == 48
    log.close()


def test_records_that_cannot_be_decoded_are_passed_and_told(
    cursor_log: CursorLog, caplog: pytest.LogCaptureFixture
) -> None:
    engine = cursor_log.engine
    engine.append([b"1", b"2"])
    cursor = cursor_log.subscribe()
    bundle = encode_bundle([b"3", b"4", b"5"], None, [1, 1, 1])
    info = check_bundle(bundle, 0, len(bundle))
    engine.settle(engine.partition().append_bundle(b"\xff" * len(bundle), 0, len(bundle), info))
    with caplog.at_level(logging.WARNING):
        assert cursor_log.poll(cursor) == []
    assert cursor.lost == cursor_log.store.totals(OWNER).lost == 3
    assert caplog.text.count("records 3 to 5 cannot be decoded") == 2, "the operator is told, and the subscription"
    engine.append([b"6"])
    assert cursor_log.poll(cursor) == [(6, b"6")]


@pytest.mark.parametrize(("number", "behind"), [(2, [31]), (3, [31])])
def test_unacknowledged_records_that_damage_took_are_finished(tmp_path: Path, number: int, behind: list[int]) -> None:
    """They are all that is to be delivered again: there is no record of them, or none at all up to the end."""
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe()
    for row in range(1, 4):
        log.engine.append([b"round %d, %d" % (row, k) for k in range(10)])
    assert log.seqs(cursor) == list(range(1, 31))
    for row in {1, 2, 3} - {number}:
        cursor.acknowledge(row * 10 - 9, row * 10)
    log.close()
    flip_in(segments(tmp_path / "d")[0], b"round %d, 5" % number)
    log = CursorLog(tmp_path / "d")
    cursor = log.get(cursor)
    assert log.seqs(cursor) == []
    assert cursor.deliveries.unacknowledged == 0
    assert cursor.lost == 10
    log.engine.append([b"new"])
    assert log.seqs(cursor) == behind
    log.close()


def test_a_gap_in_the_numbers_behind_damage_is_no_loss(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d")
    cursor = log.subscribe()
    log.engine.append([b"first %d" % k for k in range(10)])
    log.engine.append([b"x"] * 10)
    log.engine.partition().last_seq = 30  # as after publishes that failed
    log.engine.append([b"y"] * 10)
    log.close()
    flip_in(segments(tmp_path / "d")[0], b"first 5")
    log = CursorLog(tmp_path / "d")
    cursor = log.get(cursor)
    assert log.seqs(cursor) == [*range(11, 21), *range(31, 41)]
    assert cursor.lost == 10
    log.close()


def test_a_disk_that_fails_is_an_error_that_passes(tmp_path: Path) -> None:
    files = ColdFiles()
    log = CursorLog(tmp_path / "d", SMALL, files=files)
    cursor = log.subscribe()
    fill(log.engine, 6)
    log.restart()
    cursor = log.get(cursor)
    log.engine.partition()
    files.code = errno.ENOMEM
    with pytest.raises(EngineError, match=r"cannot read .*: Cannot allocate memory"):
        log.poll(cursor)
    files.code = 0
    assert log.seqs(cursor) == list(range(1, 61))
    log.close()


def test_retention_while_the_disk_is_read(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", SMALL, files=ColdFiles())
    cursor = log.subscribe()
    fill(log.engine, 10)
    log.restart()
    cursor = log.get(cursor)
    partition = log.engine.partition()
    assert cursor.next(log.clock.now_ms) is None
    assert cursor.waiting
    ready: list[bool] = []
    cursor.wait(lambda: ready.append(True))
    partition.trim(51)
    log.engine.inbox.run_until(lambda: bool(ready))
    assert log.seqs(cursor, 2) == [51, 52]
    assert cursor.lost == 50
    log.close()


def test_a_commit_while_the_disk_is_read_brings_nothing_yet(tmp_path: Path) -> None:
    files = ColdFiles()
    log = CursorLog(tmp_path / "d", files=files)
    log.engine.append([b"old"])
    log.restart()
    cursor = log.subscribe()
    assert cursor.next(log.clock.now_ms) is None
    called: list[bool] = []
    cursor.wait(lambda: called.append(True))
    files.answers.clear()
    cursor.reset(0)
    assert called == [True]
    assert cursor.next(log.clock.now_ms) is None
    assert cursor.waiting, "for the disk"
    cursor.wait(lambda: called.append(True))
    log.engine.partition().append([b"new"])
    log.engine.inbox.run_until(lambda: len(called) == 2)
    assert cursor.next(log.clock.now_ms) is None
    files.answers.set()
    assert log.poll(cursor) == [(1, b"old"), (2, b"new")]
    log.close()


def append_at(log: CursorLog, number: int) -> None:
    """A record with a number of its own, as TANK's Produce brings them."""
    bundle = encode_bundle([b"%d" % number], None, [1])
    info = check_bundle(bundle, 0, len(bundle))
    log.engine.settle(log.engine.partition().append_bundle(bundle, 0, len(bundle), info, first_seq=number))


@pytest.mark.parametrize("unacknowledged_max", [1, 100, 16384])
def test_numbers_that_are_left_out_are_passed_at_once(tmp_path: Path, unacknowledged_max: int) -> None:
    """In steps of what may be unacknowledged it would take 2**40 of them, or years."""
    log = CursorLog(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(unacknowledged_max=unacknowledged_max)))
    cursor = log.subscribe(after_seq=0)
    numbers = [1 + row * 2**40 for row in range(30)]
    for number in numbers:
        append_at(log, number)
    for number in numbers:
        assert log.seqs(cursor, 1) == [number]
        cursor.acknowledge(number, number)
    assert log.seqs(cursor) == []
    assert cursor.deliveries.next_seq == numbers[-1] + 1
    log.restart()
    cursor = log.get(cursor)
    log.engine.partition()
    cursor.reset(0)
    for number in numbers:
        assert log.seqs(cursor, 1) == [number], "from the files, too"
        cursor.acknowledge(number, number)
    log.close()


def test_a_queue_with_a_capacity_counts_records(tmp_path: Path) -> None:
    log = CursorLog(tmp_path / "d", policy=CursorPolicy(DeliveryPolicy(queue_capacity=1000)))
    cursor = log.subscribe(after_seq=0)
    log.engine.append([b"x"] * 10)
    append_at(log, 5000)
    partition = log.engine.partition()
    assert entry_item(cursor.entry(), b"t", partition.committed_seq, partition.gaps)["lag"] == 11
    assert log.seqs(cursor) == [*range(1, 11), 5000]
    assert log.store.totals(OWNER).dropped == 0
    log.close()

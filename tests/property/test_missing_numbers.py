"""Counts of records over numbers that are left out, against the numbers; in whole logs, too, with gaps up to 2^40."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left, bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.documents import entry_item
from engine.cursors.policies import CursorPolicy
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.limits import STRETCHES_MAX
from engine.positions import parse
from engine.reader import DirectoryReader
from engine.segments import missing_numbers
from engine.segments.missing_numbers import Gaps
from tests.cursor_log import CursorLog

pytestmark = pytest.mark.checked

EXAMPLES = 2000 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 60
GAP = st.one_of(st.just(0), st.just(0), st.integers(1, 5), st.integers(1, 1 << 40))
ROWS = st.lists(st.tuples(GAP, st.integers(1, 5)), min_size=1, max_size=40)


def between(numbers: list[int], first: int, last: int) -> int:
    return max(bisect_right(numbers, last) - bisect_left(numbers, first), 0)


@settings(max_examples=EXAMPLES)
@given(rows=ROWS, is_sparse=st.lists(st.booleans(), min_size=40, max_size=40), joined=st.booleans(), data=st.data())
def test_counts(rows: list[tuple[int, int]], is_sparse: list[bool], joined: bool, data: st.DataObject) -> None:
    """Exact where single gaps are known, else bounds that hold, and are exact around what is known in sum."""
    gaps, numbers, edges, last = Gaps(), list[int](), [0], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(missing_numbers, "STRETCHES_MAX", 6 if joined else STRETCHES_MAX)
        for (gap, count), sparse in zip(rows, is_sparse, strict=False):
            first = last + 1
            inner = [first + gap + row for row in range(count)]
            if sparse:  # the gap is within, as it is in bundles of this kind
                inner = [first, *(number for number in inner[1:])]
                gaps.add(first, inner[-1], count)
            else:
                gaps.add(first, inner[0] - 1)
            numbers += inner
            last = inner[-1]
            edges.append(last)
    some = st.sampled_from([*edges, *numbers]).flatmap(lambda at: st.integers(max(at - 3, 1), at + 3))
    first, end = data.draw(some), data.draw(some)
    real = between(numbers, first, min(end, last))
    least, most = gaps.count(first, min(end, last))
    assert 0 <= least <= real <= most <= max(min(end, last) - first + 1, 0)
    assert gaps.count(1, last) == (len(numbers), len(numbers))
    if not joined and not any(is_sparse[: len(rows)]):
        assert least == most == real
    count = data.draw(st.integers(1, len(numbers) + 1))
    newest = gaps.newest(first, last, count)
    assert newest == first or between(numbers, newest, last) >= count
    if least == most and newest > first and not joined and not any(is_sparse[: len(rows)]):
        assert between(numbers, newest + 1, last) == count - 1


def test_no_more_stretches_are_kept_than_that() -> None:
    gaps, last = Gaps(), 0
    for row in range(10 * STRETCHES_MAX):
        gaps.add(last + 1, last + 1 + row)
        last += row + 2
        assert len(gaps) <= STRETCHES_MAX
    assert gaps.count(1, last) == (10 * STRETCHES_MAX, 10 * STRETCHES_MAX)
    newer = last - STRETCHES_MAX * STRETCHES_MAX
    least, most = gaps.count(newer, last)
    assert least == most, "the newest ones are single"


def put(log: CursorLog, numbers: list[int]) -> None:
    """A bundle whose records have these numbers."""
    bundle = encode_bundle([b"%d" % number for number in numbers], None, [1] * len(numbers))
    info = check_bundle(bundle, 0, len(bundle))
    log.engine.settle(log.engine.partition().append_bundle(bundle, 0, len(bundle), info, first_seq=numbers[0]))


@settings(max_examples=EXAMPLES // 6, deadline=None)
@given(rows=ROWS, capacity=st.integers(1, 60), rolls=st.sets(st.integers(0, 39), max_size=3), trim=st.integers(0, 20))
def test_a_log_with_gaps(rows: list[tuple[int, int]], capacity: int, rolls: set[int], trim: int) -> None:
    """Queue, lag, what retention cost, and what is delivered, before a restart and after it."""
    with tempfile.TemporaryDirectory() as directory:
        policy = CursorPolicy(DeliveryPolicy(queue_capacity=capacity, unacknowledged_max=7))
        log = CursorLog(Path(directory) / "d", policy=policy)
        log.engine.partition()
        cursor, other = log.subscribe(after_seq=0), log.subscribe(after_seq=0)
        numbers: list[int] = []
        for row, (gap, count) in enumerate(rows):
            first = (numbers[-1] if numbers else 0) + 1 + gap
            put(log, list(range(first, first + count)))
            numbers += range(first, first + count)
            if row in rolls:
                log.engine.log.committer.roll_next(log.engine.partition())
        partition = log.engine.partition()
        item = entry_item(cursor.entry(), b"t", partition.committed_seq, partition.gaps)
        assert item["lag"] == len(numbers)
        kept = numbers[-capacity:]
        got = log.seqs(cursor, 3)
        assert got == kept[: min(3, capacity)]
        assert log.store.totals(cursor.owner).dropped == len(numbers) - len(kept)
        cursor.acknowledge(got[0], got[-1])
        log.flush()
        log.restart()
        cursor, partition = log.get(cursor), log.engine.partition()
        left = [number for number in kept if number > got[-1]]
        item = entry_item(cursor.entry(), b"t", partition.committed_seq, partition.gaps)
        assert item["lag"] >= len(left)
        assert partition.gaps.count(1, partition.committed_seq).most == len(numbers)
        taken: list[int] = []
        while more := log.seqs(cursor, 7):
            taken += more
            cursor.acknowledge(more[0], more[-1])
        assert taken == left
        other = log.get(other)
        removed = numbers[min(trim, len(numbers)) - 1] if trim else 0
        partition.trim(removed + 1)
        log.seqs(other, 1)
        assert between(numbers, 1, removed) <= other.lost <= len(numbers), "of sealed segments the sum is known"
        log.close()
        reader = DirectoryReader(log.path)
        stored = reader.partition(reader.topic(b"t"))
        assert stored.gaps().count(stored.log_start, numbers[-1]).most >= between(numbers, removed + 1, numbers[-1])
        assert stored.gaps().count(stored.segments[0].header.first_seq, numbers[-1]).most <= len(numbers)
        rows = [number for number in numbers if number >= stored.log_start]
        for count in {0, 1, trim, len(rows), len(rows) + 1}:
            newest, behind = parse(f"-{count}").resolve(stored), parse(f"+{count}").resolve(stored)
            assert [number for number in rows if number >= newest] == rows[max(len(rows) - count, 0) :]
            assert [number for number in rows if number >= behind] == rows[count:]
        reader.close()


def test_a_gap_that_is_told_twice_counts_once() -> None:
    """Recovery tells of one before an empty segment, and the first write batch there tells of it again."""
    gaps = Gaps()
    gaps.add(4, 1 << 40)
    gaps.add(4, (1 << 40) + 7)
    assert len(gaps) == 1
    assert gaps.count(1, (1 << 40) + 9) == (5, 5)

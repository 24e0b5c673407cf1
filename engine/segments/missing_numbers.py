"""Which numbers of a partition name no record, as far as that is known: a difference of numbers is no count.

Numbers are left out by publishes that failed, by starts after a crash, and by publishers that bring numbers of their
own (up to 2**32 at a time). How many records a range holds is answered without reading anything, from *stretches*:
ascending ranges of numbers with how many of each are missing. Where all of them are, the stretch is a gap, and counts
are exact. Other ones bring bounds instead of a count, for ranges that begin or end within them: a bundle that leaves
out numbers, a sealed segment whose footer tells how many records it has but not which numbers it lacks (after a
start), and stretches that were joined, because no more than `STRETCHES_MAX` are kept. Before the oldest segment, and in
a partition without stretches, no number is missing. Numbers that damage took, or with a segment's file, count as
records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from engine.formats.batch_header import read_header
from engine.limits import STRETCH_BATCHES_MAX, STRETCHES_MAX
from engine.segments.batches import WriteBatch


class Count(NamedTuple):
    """How many records there are, at least and at most."""

    least: int
    most: int


class Gaps:
    """The stretches of one partition. What is added lies after everything that was added before.

    But for a gap: before an empty segment recovery adds it, and the first write batch there once more.
    """

    __slots__ = ("_firsts", "_lasts", "_missing")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._missing = [0]  # in all stretches before this one; one entry more than there are stretches

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, last: int, records: int = 0) -> None:
        """The numbers ``first`` to ``last`` name so many records; nothing is added when that is all of them."""
        if not records and self._lasts:
            first = max(first, self._lasts[-1] + 1)
        missing = last - first + 1 - records
        if missing <= 0:
            return
        if not records and self._lasts and self._lasts[-1] == first - 1 and self._is_gap(len(self) - 1):
            self._lasts[-1] = last
            self._missing[-1] += missing
            return
        self._firsts.append(first)
        self._lasts.append(last)
        self._missing.append(self._missing[-1] + missing)
        if len(self) > STRETCHES_MAX:
            self._join_older()

    def _is_gap(self, index: int) -> bool:
        return self._missing[index + 1] - self._missing[index] == self._lasts[index] - self._firsts[index] + 1

    def _join_older(self) -> None:
        """Make one of each two stretches of the older half."""
        half = len(self) // 4 * 2
        self._firsts[:half] = self._firsts[:half:2]
        self._lasts[:half] = self._lasts[1:half:2]
        self._missing[1 : half + 1] = self._missing[2 : half + 1 : 2]

    def count(self, first: int, last: int) -> Count:
        """How many records have a number from ``first`` to ``last``."""
        numbers = max(last - first + 1, 0)
        if not self._firsts or not numbers:
            return Count(numbers, numbers)
        begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        least = most = numbers
        if begin < end:
            inner = self._missing[max(end - 1, begin + 1)] - self._missing[begin + 1]  # of those with both ends in it
            least -= inner
            most -= inner
            for index in {begin, end - 1}:
                low, high = max(first, self._firsts[index]), min(last, self._lasts[index])
                size, part = self._lasts[index] - self._firsts[index] + 1, high - low + 1
                missing = self._missing[index + 1] - self._missing[index]
                least -= min(part, missing)
                most -= max(part - (size - missing), 0)
        return Count(least, most)

    def most(self, ranges: Iterable[tuple[int, int]]) -> int:
        """How many records these ranges (inclusive) hold together, at most."""
        return sum([self.count(first, last).most for first, last in ranges])

    def newest(self, first: int, last: int, count: int) -> int:
        """The highest number from which at least ``count`` records follow up to ``last``; ``first`` if it has no more
        than so many after it."""
        if self.count(first, last).least <= count:
            return first
        low, high = first, last + 1
        while low + 1 < high:  # low is one
            middle = (low + high) // 2
            if self.count(middle, last).least >= count:
                low = middle
            else:
                high = middle
        return low

    def behind(self, last_seq: int, write_batch: WriteBatch) -> Gaps:
        """These, and what a write batch after ``last_seq`` leaves out: the same object, unless it is `NO_GAPS`."""
        gaps = Gaps() if self is NO_GAPS else self
        if write_batch.batches > STRETCH_BATCHES_MAX:
            gaps.add(last_seq + 1, write_batch.first_seq - 1)
            gaps.add(write_batch.first_seq, write_batch.last_seq, write_batch.records)
            return gaps
        position = 0
        while position < write_batch.end:
            header = read_header(
                write_batch.buffer, position, write_batch.segment_id, write_batch.file_position + position
            )
            assert header is not None, "it was sealed"
            gaps.add(last_seq + 1, header.first_seq - 1)
            gaps.add(header.first_seq, header.last_seq, header.count)
            last_seq, position = header.last_seq, header.end
        return gaps

    def extend(self, other: Gaps) -> None:
        """Add the stretches of another partition reader's, or recovery's, segment."""
        for index in range(len(other)):
            missing = other._missing[index + 1] - other._missing[index]
            first, last = other._firsts[index], other._lasts[index]
            self.add(first, last, last - first + 1 - missing)


NO_GAPS = Gaps()
"""Of most partitions; nothing may be added to it."""

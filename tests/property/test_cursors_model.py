"""The deliveries of a cursor against a model that keeps one small object per record and follows the rules literally."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.cursors.deliveries import NEVER_MS, Deliveries, DeliveryPolicy, load
from engine.limits import OVERTAKEN_MAX
from engine.segments.missing_numbers import Gaps

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
NUMBERS = st.integers(1, 60)
GAPS = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 7, 5000, 1 << 32, 1 << 40])


@dataclass
class Item:
    """One delivered and unacknowledged record."""

    attempts: int
    due_ms: int
    state: str  # flight, queued, given up


class CursorMachine(RuleBasedStateMachine):
    """Random work on a cursor of a log that grows, is trimmed, and has gaps."""

    @initialize(
        backoff=st.sampled_from([0, 100]),
        deliveries_max=st.sampled_from([0, 2, 3]),
        capacity=st.sampled_from([0, 5]),
        unacknowledged_max=st.sampled_from([4, 1000]),
    )
    def begin(self, backoff: int, deliveries_max: int, capacity: int, unacknowledged_max: int) -> None:
        self.policy = DeliveryPolicy(
            retry_backoff_ms=backoff,
            retry_backoff_max_ms=1000,
            deliveries_max=deliveries_max,
            queue_capacity=capacity,
            unacknowledged_max=unacknowledged_max,
        )
        self.subject = Deliveries(1, self.policy)
        self.now_ms = 0
        self.committed = 0
        self.records: list[int] = []
        self.gaps = Gaps()
        self.dropped = 0
        self.next_seq = 1
        self.items: dict[int, Item] = {}
        self.queue: list[tuple[int, int]] = []  # (seq, barrier)

    # --- the model

    def fall_due(self) -> None:
        barrier = min(self.committed, self.next_seq - 1 + OVERTAKEN_MAX)
        for seq in sorted(self.items):
            item = self.items[seq]
            if item.state == "flight" and item.due_ms <= self.now_ms and not self.give_up(item):
                item.state = "queued"
                self.queue.append((seq, barrier))

    def give_up(self, item: Item) -> bool:
        if self.policy.deliveries_max and item.attempts >= self.policy.deliveries_max:
            item.state = "given up"
            return True
        return False

    def next_in_model(self) -> tuple[int, bool] | None:
        """What is to be delivered now: the number and whether it was delivered before."""
        self.fall_due()
        if self.policy.queue_capacity:
            room = max(self.policy.queue_capacity - len(self.items), 1)
            waiting = self.waiting()
            if len(waiting) > room:
                self.dropped += len(waiting) - room
                self.next_seq = waiting[-room]
        self.queue = [(seq, barrier) for seq, barrier in self.queue if self.is_queued(seq)]
        is_new = self.next_seq <= self.committed and len(self.items) < self.policy.unacknowledged_max
        if is_new and (not self.queue or self.next_seq <= self.queue[0][1]):
            return self.next_seq, False
        return (self.queue[0][0], True) if self.queue else None

    def waiting(self) -> list[int]:
        """The records that were never delivered."""
        return self.records[bisect_left(self.records, self.next_seq) :]

    def is_queued(self, seq: int) -> bool:
        return seq in self.items and self.items[seq].state == "queued"

    # --- the rules

    @rule(count=st.integers(1, 10), gaps=st.lists(GAPS, min_size=10, max_size=10))
    def commit(self, count: int, gaps: list[int]) -> None:
        for gap in gaps[:count]:
            self.gaps.add(self.committed + 1, self.committed + gap)
            self.committed += gap + 1
            self.records.append(self.committed)

    @rule(wait_ms=st.sampled_from([1, 30, 100, 115, 400, 5000]))
    def wait(self, wait_ms: int) -> None:
        self.now_ms += wait_ms

    @rule(limit=st.integers(1, 20), qos0=st.booleans())
    def deliver(self, limit: int, qos0: bool) -> None:
        while limit > 0:
            plan = self.subject.plan(self.committed, self.now_ms, self.gaps)
            expected = self.next_in_model()
            if plan is None or expected is None:
                assert plan is None and expected is None  # noqa: PT018  (both or neither)
                return
            assert (plan.first, plan.retry) == expected
            at = bisect_left(self.records, plan.first)
            assert at < len(self.records), "the last committed number is a record's"
            first = last = self.records[at]
            if first > plan.last:  # at once, as the readers do it
                assert not plan.retry
                self.subject.finished(plan, first - 1)
                self.model_finished(plan.first, first - 1)
            elif qos0 and not plan.retry:
                self.subject.finished(plan, first)
                self.model_finished(plan.first, first)
            else:
                # one stretch without a gap at a time, as the readers do it
                while last + 1 in self.records[at : at + limit + 1] and last < plan.last and last - first + 1 < limit:
                    last += 1
                self.subject.delivered(plan, first, last, self.now_ms)
                self.model_delivered(first, last, plan.retry)
                limit -= last - first
            limit -= 1

    def model_finished(self, first: int, last: int) -> None:
        for seq in [seq for seq in self.items if first <= seq <= last]:
            del self.items[seq]
        self.next_seq = max(self.next_seq, last + 1)

    def model_delivered(self, first: int, last: int, retry: bool) -> None:
        if not retry:
            self.next_seq = first  # what lies before it names no record
        for seq in range(first, last + 1):
            assert self.next_in_model() == (seq, retry)
            self.queue = [entry for entry in self.queue if entry[0] != seq]
            item = self.items.setdefault(seq, Item(0, 0, "flight"))
            item.state = "flight"
            item.attempts += 1
            item.due_ms = self.subject.due_ms(self.now_ms, item.attempts)
            self.next_seq = max(self.next_seq, seq + 1)

    def some(self, index: int, length: int) -> tuple[int, int]:
        """The numbers of some records, if there are any, else some numbers."""
        at = self.records[index % len(self.records)] if self.records else index
        return at, at + length - 1

    @rule(first=NUMBERS, length=st.integers(1, 8))
    def acknowledge(self, first: int, length: int) -> None:
        first, _ = self.some(first, length)
        known = [seq for seq in range(first, first + length) if seq in self.items]
        assert self.subject.covers(first, first + length - 1) == (len(known) == length)
        assert self.subject.acknowledge(first, first + length - 1) == len(known)
        for seq in known:
            del self.items[seq]

    @rule(first=NUMBERS, length=st.integers(1, 8), delay_ms=st.sampled_from([0, 50]))
    def release(self, first: int, length: int, delay_ms: int) -> None:
        first, _ = self.some(first, length)
        known = [seq for seq in range(first, first + length) if seq in self.items and self.items[seq].state == "flight"]
        assert self.subject.release(first, first + length - 1, self.now_ms, delay_ms) == len(known)
        back = []
        for seq in known:
            item = self.items[seq]
            if delay_ms:
                item.due_ms = self.now_ms + delay_ms
            elif not self.give_up(item):
                item.state = "queued"
                back.append((seq, 0))
        self.queue[:0] = back

    @rule()
    def take_given_up(self) -> None:
        self.subject.fall_due(self.committed, self.now_ms)
        self.fall_due()
        for run in self.subject.given_up:
            for seq in range(run.first, run.last + 1):
                if seq in self.items and self.items[seq].state == "given up":
                    assert self.subject.acknowledge(seq, seq) == 1
                    del self.items[seq]
        self.subject.given_up.clear()
        assert not any(item.state == "given up" for item in self.items.values())

    @rule(ahead=st.integers(-5, 5))
    def trim(self, ahead: int) -> None:
        log_start = max(min(self.subject.floor + 1 + ahead, self.committed + 1), 1)
        lost = [seq for seq in self.items if seq < log_start]
        assert self.subject.jump(log_start) == len(lost)
        for seq in lost:
            del self.items[seq]
        self.next_seq = max(self.next_seq, log_start)

    @rule()
    def restart(self) -> None:
        self.dropped -= self.subject.dropped
        self.subject = load(self.subject.dump(), self.policy)
        self.queue = []
        for seq in sorted(self.items):
            self.items[seq].state = "queued"
            self.queue.append((seq, 0))

    # --- always

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "subject"):
            return
        runs = list(self.subject.runs())
        assert [seq for run in runs for seq in range(run.first, run.last + 1)] == sorted(self.items)
        assert self.subject.dropped == self.dropped
        waiting = len(self.waiting())
        assert self.gaps.count(self.subject.next_seq, self.committed) == (waiting, waiting), "what lag is"
        assert self.subject.unacknowledged == len(self.items)
        assert self.subject.queued == sum(item.state == "queued" for item in self.items.values())
        assert self.subject.next_seq == self.next_seq
        assert self.subject.floor == min(self.items, default=self.next_seq) - 1
        for run in runs:
            for seq in range(run.first, run.last + 1):
                item = self.items[seq]
                assert item.attempts == run.attempts
                assert item.state == {0: "queued", -1: "given up"}.get(run.due_ms, "flight")
                if item.state == "flight":
                    assert item.due_ms == run.due_ms
                    assert self.subject.next_due_ms <= run.due_ms or run.due_ms == NEVER_MS


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(max_examples=20_000 if NIGHTLY else 100, stateful_step_count=50)

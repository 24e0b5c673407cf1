"""The arithmetic of a cursor: what is planned, delivered, acknowledged, given back, given up, stored."""

from __future__ import annotations

import pytest

from engine.cursors.deliveries import GIVEN_UP, NEVER_MS, QUEUED, Deliveries, DeliveryPolicy, Plan, Run, load
from engine.limits import OVERTAKEN_MAX

pytestmark = pytest.mark.checked

POLICY = DeliveryPolicy()
PLAIN = DeliveryPolicy(retry_backoff_ms=0)


def deliver(deliveries: Deliveries, committed: int, now_ms: int, limit: int = 1 << 60) -> list[int]:
    """Carry out plans, like somebody who reads a log without gaps, until there is none or ``limit`` is reached."""
    seqs: list[int] = []
    while len(seqs) < limit and (plan := deliveries.plan(committed, now_ms)) is not None:
        last = min(plan.last, plan.first + limit - len(seqs) - 1)
        deliveries.delivered(plan, plan.first, last, now_ms)
        seqs += range(plan.first, last + 1)
    return seqs


def same(plan: Plan | None, first: int, last: int, retry: bool) -> bool:
    return plan is not None and repr(plan) == f"Plan({first}, {last}, {retry})"


def unacknowledged(deliveries: Deliveries) -> list[int]:
    return [seq for run in deliveries.runs() for seq in range(run.first, run.last + 1)]


def test_in_order() -> None:
    deliveries = Deliveries(11, POLICY)
    assert deliveries.plan(10, 0) is None
    assert (deliveries.floor, deliveries.next_seq) == (10, 11)
    assert deliver(deliveries, 20, 0) == list(range(11, 21))
    assert deliveries.plan(20, 0) is None
    assert len(list(deliveries.runs())) == 1
    assert deliveries.acknowledge(11, 11) == 1
    assert deliveries.acknowledge(11, 11) == 0
    assert deliveries.acknowledge(12, 20) == 9
    assert (deliveries.floor, deliveries.next_seq, deliveries.unacknowledged) == (20, 21, 0)
    assert deliveries.next_due_ms == NEVER_MS


def test_acknowledged_in_any_order() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 10, 0)
    assert deliveries.acknowledge(9, 9) == 1
    assert deliveries.acknowledge(3, 4) == 2
    assert unacknowledged(deliveries) == [1, 2, 5, 6, 7, 8, 10]
    assert deliveries.acknowledge(2, 9) == 5
    assert unacknowledged(deliveries) == [1, 10]
    assert deliveries.floor == 0
    assert deliveries.acknowledge(1, 1) == 1
    assert deliveries.floor == 9
    assert deliveries.acknowledge(11, 99) == 0, "never delivered"
    assert deliveries.acknowledge(0, 1 << 62) == 1
    assert deliveries.floor == 10


def test_covers() -> None:
    deliveries = Deliveries(5, POLICY)
    assert not deliveries.covers(5, 5)
    deliver(deliveries, 9, 0)
    deliver(deliveries, 12, 5000)
    assert deliveries.covers(5, 12)
    assert not deliveries.covers(4, 5)
    assert not deliveries.covers(12, 13)
    deliveries.acknowledge(7, 7)
    assert deliveries.covers(8, 12)
    assert not deliveries.covers(6, 8)
    assert not deliveries.covers(7, 7)


@pytest.mark.parametrize(
    ("attempts", "wait_ms"), [(1, 100), (2, 200), (3, 400), (8, 12_800), (9, 25_600), (10, 30_000), (9999, 30_000)]
)
def test_backoff_doubles_and_is_capped(attempts: int, wait_ms: int) -> None:
    for now_ms in (0, 1, 12_345):
        assert wait_ms <= Deliveries(1, POLICY).due_ms(now_ms, attempts) - now_ms < wait_ms * 9 / 8


def test_without_backoff_nothing_falls_due() -> None:
    deliveries = Deliveries(1, PLAIN)
    deliver(deliveries, 3, 0)
    assert deliveries.plan(3, 1 << 60) is None


def test_a_redelivery_comes_behind_what_was_committed_when_it_fell_due() -> None:
    deliveries = Deliveries(1, POLICY)
    assert deliver(deliveries, 5, 0, 2) == [1, 2]
    assert deliver(deliveries, 5, 400, 1) == [3]  # 1 and 2 have fallen due by now, at 5
    assert deliver(deliveries, 9, 400) == [4, 5, 1, 2, 6, 7, 8, 9]
    assert deliveries.redelivered == 2
    assert [(run.first, run.last, run.attempts) for run in deliveries.runs()] == [(1, 2, 2), (3, 9, 1)]


def test_a_redelivery_is_overtaken_by_a_bounded_number() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 10_000, 0, 1)
    seqs = deliver(deliveries, 10_000, 400, 2000)
    assert seqs[:OVERTAKEN_MAX] == list(range(2, OVERTAKEN_MAX + 2))
    assert seqs[OVERTAKEN_MAX] == 1


def test_a_redelivery_does_not_wait_when_nothing_new_may_be_delivered() -> None:
    deliveries = Deliveries(1, DeliveryPolicy(unacknowledged_max=3))
    assert deliver(deliveries, 100, 0, 3) == [1, 2, 3]
    assert deliveries.plan(100, 0) is None
    assert deliver(deliveries, 100, 400, 3) == [1, 2, 3]
    deliveries.acknowledge(2, 2)
    assert deliver(deliveries, 100, 401, 1) == [4]


def test_deliveries_max() -> None:
    deliveries = Deliveries(1, DeliveryPolicy(deliveries_max=3))
    now_ms = 0
    for _ in range(3):
        assert deliver(deliveries, 1, now_ms) == [1]
        now_ms += 1000
    assert deliveries.plan(1, now_ms) is None
    assert deliveries.given_up == [Run(1, 1, 3, GIVEN_UP)]
    assert unacknowledged(deliveries) == [1], "kept until its owner has dealt with it"
    assert deliveries.acknowledge(1, 1) == 1
    assert deliveries.floor == 1


def test_acknowledged_late() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 3, 0)
    assert deliveries.plan(3, 5000) is not None
    assert deliveries.queued == 3
    assert deliveries.acknowledge(2, 2) == 1
    assert deliver(deliveries, 3, 5000) == [1, 3]
    deliveries.plan(3, 50_000)
    assert deliveries.acknowledge(1, 3) == 2
    assert deliveries.queued == 0
    assert deliveries.plan(3, 50_000) is None


def test_given_back() -> None:
    deliveries = Deliveries(1, PLAIN)
    deliver(deliveries, 5, 0)
    deliveries.acknowledge(3, 3)
    assert deliveries.release(2, 4, 0) == 2
    assert deliveries.release(2, 4, 0) == 0
    assert deliver(deliveries, 9, 0, 3) == [2, 4, 6], "first of all"
    assert deliveries.release(1, 1, 1000, delay_ms=500) == 1
    assert deliver(deliveries, 9, 1000) == [7, 8, 9]
    assert deliver(deliveries, 9, 1500) == [1]
    assert unacknowledged(deliveries) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_given_back_too_often() -> None:
    deliveries = Deliveries(1, DeliveryPolicy(retry_backoff_ms=0, deliveries_max=2))
    for _ in range(2):
        assert deliver(deliveries, 1, 0) == [1]
        assert deliveries.release(1, 1, 0) == 1
    assert deliveries.plan(1, 0) is None
    assert deliveries.given_up == [Run(1, 1, 2, GIVEN_UP)]


def test_gaps_are_passed() -> None:
    deliveries = Deliveries(1, POLICY)
    plan = deliveries.plan(10, 0)
    assert same(plan, 1, 10, False)
    deliveries.delivered(plan, 4, 5, 0)
    plan = deliveries.plan(10, 0)
    assert same(plan, 6, 10, False)
    deliveries.finished(plan, 8)
    assert deliver(deliveries, 10, 0) == [9, 10]
    assert unacknowledged(deliveries) == [4, 5, 9, 10]
    plan = deliveries.plan(10, 1000)
    assert same(plan, 4, 5, True)
    deliveries.delivered(plan, 5, 5, 1000)  # 4 was lost to damage meanwhile
    plan = deliveries.plan(10, 1000)
    assert same(plan, 9, 10, True)
    deliveries.finished(plan, 9)
    assert deliver(deliveries, 10, 1000) == [10]
    assert unacknowledged(deliveries) == [5, 10]


def test_queue_capacity_drops_the_oldest_that_wait() -> None:
    deliveries = Deliveries(1, DeliveryPolicy(queue_capacity=4))
    assert deliver(deliveries, 1, 0) == [1]
    assert deliver(deliveries, 10, 0, 3) == [8, 9, 10]
    assert deliveries.dropped == 6
    assert deliver(deliveries, 100, 0) == [100], "all places are in flight: only the newest is kept"


def test_jump_over_what_retention_removed() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 10, 0)
    deliveries.acknowledge(2, 3)
    assert deliveries.jump(5) == 2
    assert unacknowledged(deliveries) == [5, 6, 7, 8, 9, 10]
    assert deliveries.jump(5) == 0
    assert deliveries.jump(21) == 6
    assert (deliveries.floor, deliveries.next_seq) == (20, 21)


def test_cursor_beyond_the_end() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 10, 0)
    assert deliveries.cut(10) == 0
    assert deliveries.cut(7) == 3
    assert (unacknowledged(deliveries), deliveries.next_seq) == ([1, 2, 3, 4, 5, 6, 7], 8)


def test_reset() -> None:
    deliveries = Deliveries(1, DeliveryPolicy(deliveries_max=1))
    deliver(deliveries, 10, 0)
    deliveries.plan(10, 500)
    deliveries.reset(4)
    assert deliveries.given_up == []
    assert deliver(deliveries, 10, 500, 2) == [4, 5]


def test_stored_and_loaded() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 4, 0)
    deliver(deliveries, 8, 1000, 7)  # 5 to 8, then 1 to 3 once more
    deliveries.acknowledge(2, 2)
    deliveries.acknowledge(6, 7)
    flat = deliveries.dump()
    loaded = load(flat, POLICY)
    assert [(run.first, run.last, run.attempts) for run in loaded.runs()] == [
        (1, 1, 2), (3, 3, 2), (4, 5, 1), (8, 8, 1),
    ]  # fmt: skip
    assert all(run.due_ms == QUEUED for run in loaded.runs())
    assert loaded.unacknowledged == loaded.queued == 5
    assert deliver(loaded, 10, 0, 6) == [1, 3, 4, 5, 8, 9], "what was in flight comes again, before anything new"
    assert load([77], POLICY).dump() == [77]


@pytest.mark.parametrize(
    "flat", [[], [5, 1], [5, 1, 1], [5, 0, 1, 1], [5, 5, 1, 1], [5, 1, 0, 1], [5, 1, 2, 1], [9, 8, 1, 1, 0, 1, 1], [-1]]
)
def test_not_a_dump(flat: list[int]) -> None:
    with pytest.raises(ValueError, match="cursor"):
        load(flat, POLICY)


def test_many_runs_stay_small() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 16_384, 0)
    for seq in range(1, 16_384, 2):
        assert deliveries.acknowledge(seq, seq) == 1
    assert len(list(deliveries.runs())) == 8192
    assert load(deliveries.dump(), POLICY).unacknowledged == 8192


def test_the_head_of_the_queue_may_be_acknowledged_whole() -> None:
    deliveries = Deliveries(1, POLICY)
    deliver(deliveries, 10, 0)
    assert deliveries.release(2, 3, 0) == 2
    assert deliveries.release(7, 8, 0) == 2
    head = deliveries.plan(10, 0)
    assert same(head, 7, 8, True)
    assert deliveries.acknowledge(7, 8) == 2
    assert same(deliveries.plan(10, 0), 2, 3, True)
    assert deliver(deliveries, 10, 0) == [2, 3]
    assert deliveries.plan(10, 0) is None

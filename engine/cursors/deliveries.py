# cython: annotation_typing=False
"""What one durable cursor has delivered, what of it is acknowledged, and what comes next. No I/O, no clock of its own.

Sequence numbers of a cursor, from left to right::

    ... finished ... | floor | acknowledged and unacknowledged runs | next_seq | never delivered ...

Kept are only the *unacknowledged runs* below ``next_seq``; everything else there is finished (acknowledged, delivered
for good, dropped, or a number that names no record). A consumer that acknowledges in order has one run at most, and
the number of runs never exceeds that of unacknowledged records, which is bounded by the policy.

Each run is in one of three states: *in flight* (delivered, with a time at which it falls due), *queued* (fell due or
was given back: it is delivered again) or *given up* (delivered as often as the policy allows; the owner writes it to
the dead-letter topic, then acknowledges it).

Redelivery: after delivery number n a record falls due ``retry_backoff_ms * 2**(n-1)`` later. It then goes after the
records that were committed by that time, at most ``OVERTAKEN_MAX`` of them, so that neither new nor old ones starve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.limits import OVERTAKEN_MAX, UNACKNOWLEDGED_MAX
from engine.segments.missing_numbers import NO_GAPS, Gaps

QUEUED = 0  # Run.due_ms of runs that are not in flight
GIVEN_UP = -1
NEVER_MS = 1 << 62  # in flight until given back
# C variables of the compiled module
_QUEUED = QUEUED
_GIVEN_UP = GIVEN_UP
_NEVER = NEVER_MS
_DOUBLINGS = 24
_OVERTAKEN = OVERTAKEN_MAX


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """How a protocol wants the cursors of its subscriptions to behave; 0 = no limit where a limit is optional.

    Attributes:
        retry_backoff_ms: time from the first delivery to the second; it doubles each time. 0: no timer, what is
            unacknowledged stays in flight until it is given back.
        retry_backoff_max_ms: bound of the doubled time.
        deliveries_max: deliveries of one record before it is given up.
        queue_capacity: records that wait or are in flight; the oldest waiting ones beyond it are dropped.
        message_ttl_ms: age at which a record is no longer delivered (used by who reads the records).
        unacknowledged_max: at so many unacknowledged records nothing new is delivered.
    """

    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 30_000
    deliveries_max: int = 0
    queue_capacity: int = 0
    message_ttl_ms: int = 0
    unacknowledged_max: int = UNACKNOWLEDGED_MAX


COMPILED = not __file__.endswith(".py")


class Plan:
    """Numbers to deliver next: the records among ``first`` to ``last``, in order; ``retry``: delivered before."""

    def __init__(self, first: int, last: int, retry: bool) -> None:
        self.first = first
        self.last = last
        self.retry = retry

    def __repr__(self) -> str:
        return f"Plan({self.first}, {self.last}, {self.retry})"


class Run(NamedTuple):
    """Unacknowledged numbers ``first`` to ``last``, all delivered ``attempts`` times; ``due_ms`` as in the module."""

    first: int
    last: int
    attempts: int
    due_ms: int


class Deliveries:
    """The numbers of one cursor, see the module.

    Args:
        next_seq: the first number to deliver.

    Attributes:
        policy: see :meth:`set_policy`.
        unacknowledged: how many are in flight, queued or given up.
        queued: of these, how many are queued.
        given_up: news for the owner, who takes them away from here.
        dropped: how many records a full queue has cost; whoever counts them sets it to 0.
        redelivered: how many deliveries were not the first.
    """

    def __init__(self, next_seq: int, policy: DeliveryPolicy) -> None:
        self.next_seq = next_seq
        self.unacknowledged = 0
        self.queued = 0
        self.given_up: list[Run] = []
        self.dropped = 0
        self.redelivered = 0
        # the unacknowledged runs, ascending, as parallel lists: bisect works on them, and a run costs no object
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._attempts: list[int] = []
        self._dues: list[int] = []
        self._next_due_ms = _NEVER  # nothing falls due before; may be too early after acknowledgements
        # (first, last, barrier): queued numbers in the order of redelivery; what is no longer queued among them is
        # passed over. Deliverable once next_seq is beyond the barrier.
        self._queue: list[tuple[int, int, int]] = []  # short; and a deque has 600 bytes even when it is empty
        self.set_policy(policy)

    def set_policy(self, policy: DeliveryPolicy) -> None:
        """Follow a policy from now on."""
        self.policy = policy
        self._backoff_ms = policy.retry_backoff_ms
        self._backoff_max_ms = policy.retry_backoff_max_ms
        self._unacknowledged_max = policy.unacknowledged_max
        self._capacity = policy.queue_capacity

    def due_ms(self, now_ms: int, attempts: int) -> int:
        """When a record delivered for the ``attempts``-th time just now falls due.

        Rounded up to an eighth of the time, so that what was delivered at about the same time stays one run.
        """
        if self._backoff_ms == 0:
            return _NEVER
        wait_ms = self._backoff_max_ms
        if attempts < _DOUBLINGS and self._backoff_ms << (attempts - 1) < wait_ms:
            wait_ms = self._backoff_ms << (attempts - 1)
        step_ms = wait_ms >> 3 or 1
        return (now_ms + wait_ms + step_ms - 1) // step_ms * step_ms

    # --- looking

    @property
    def floor(self) -> int:
        """The highest number up to which everything is finished."""
        return self._firsts[0] - 1 if self._firsts else self.next_seq - 1

    @property
    def next_due_ms(self) -> int:
        """No record falls due before this time."""
        return self._next_due_ms

    def runs(self) -> Iterator[Run]:
        """The unacknowledged runs, ascending."""
        return map(Run, self._firsts, self._lasts, self._attempts, self._dues)

    def covers(self, first: int, last: int) -> bool:
        """Whether all numbers from ``first`` to ``last`` are delivered and unacknowledged."""
        index = self._find(first)
        if not self._firsts or self._firsts[index] > first:
            return False
        while self._lasts[index] < last:
            if index + 1 == len(self._firsts) or self._firsts[index + 1] != self._lasts[index] + 1:
                return False
            index += 1
        return self._lasts[index] >= first

    # --- delivering

    def plan(self, committed_seq: int, now_ms: int, gaps: Gaps = NO_GAPS) -> Plan | None:
        """What to deliver now; None = nothing. Say what was done with :meth:`delivered` or :meth:`finished`."""
        if now_ms >= self._next_due_ms:
            self.fall_due(committed_seq, now_ms)
        if self._capacity:
            self._drop_oldest(committed_seq, gaps)
        last = self.next_seq - 1 + self._unacknowledged_max - self.unacknowledged
        if last > committed_seq:
            last = committed_seq
        if self.queued:
            barrier = self._queue[0][2]
            if last > barrier:
                last = barrier
            if self.next_seq > last:
                return self._next_retry()
        return Plan(self.next_seq, last, False) if self.next_seq <= last else None

    def _next_retry(self) -> Plan:
        """The first stretch of numbers at the head of the queue that is still queued; there is one."""
        queue = self._queue
        while True:
            assert queue, "what is queued stands in the queue"
            first, last, _ = queue[0]
            index = self._find(first)
            while index < len(self._firsts) and self._firsts[index] <= last:
                if self._dues[index] == _QUEUED and self._lasts[index] >= first:
                    return Plan(max(first, self._firsts[index]), min(last, self._lasts[index]), True)
                index += 1
            del queue[0]

    def _drop_oldest(self, committed_seq: int, gaps: Gaps) -> None:
        room = max(self._capacity - self.unacknowledged, 1)
        first = committed_seq + 1 - room  # if every number were a record
        if first > self.next_seq and gaps:
            first = gaps.newest(self.next_seq, committed_seq, room)
        if first > self.next_seq:
            self.dropped += gaps.count(self.next_seq, first - 1).most
            self.next_seq = first

    def delivered(self, plan: Plan, first: int, last: int, now_ms: int) -> None:
        """The records ``first`` to ``last`` of a plan were delivered and are to be acknowledged.

        Numbers of the plan before ``first`` name no record (any more) and are finished.
        """
        if not plan.retry:
            self.append_run(first, last, 1, self.due_ms(now_ms, 1))
            self.next_seq = last + 1
            return
        if first > plan.first:
            self.acknowledge(plan.first, first - 1)
        _, head_last, barrier = self._queue[0]
        if last < head_last:
            self._queue[0] = (last + 1, head_last, barrier)
        else:
            del self._queue[0]
        index = self._isolate(first, last)
        attempts = self._attempts[index] + 1
        self._attempts[index] = attempts
        self._set_due(index, self.due_ms(now_ms, attempts))
        self.queued -= last - first + 1
        self.redelivered += last - first + 1
        self._join(index)

    def finished(self, plan: Plan, last: int) -> None:
        """The numbers of a plan up to ``last`` need no acknowledgement: delivered for good, expired, or no record."""
        if plan.retry:
            self.acknowledge(plan.first, last)
        else:
            self.next_seq = last + 1

    # --- acknowledging and giving back

    def acknowledge(self, first: int, last: int) -> int:
        """Finish the delivered numbers from ``first`` to ``last``.

        Returns:
            how many of them were unacknowledged
        """
        firsts, lasts = self._firsts, self._lasts
        if not firsts or last < firsts[0]:
            return 0
        index = self._find(first)
        count = 0
        while index < len(firsts) and firsts[index] <= last:
            run_first, run_last = firsts[index], lasts[index]
            if run_last < first:
                index += 1
                continue
            low = run_first if run_first > first else first
            high = run_last if run_last < last else last
            count += high - low + 1
            if self._dues[index] == _QUEUED:
                self.queued -= high - low + 1
            if low > run_first and high < run_last:
                self._split(index, low)
                firsts[index + 1] = high + 1
            elif low > run_first:
                lasts[index] = low - 1
                index += 1
            elif high < run_last:
                firsts[index] = high + 1
            else:
                del firsts[index], lasts[index], self._attempts[index], self._dues[index]
        self.unacknowledged -= count
        if not self.queued:
            self._queue.clear()
        if not firsts:
            self._next_due_ms = _NEVER
        return count

    def release(self, first: int, last: int, now_ms: int, delay_ms: int = 0) -> int:
        """Give back numbers in flight (a NACK, a reader that went away): they fall due ``delay_ms`` from now, or are
        delivered again before anything else when there is no delay.

        Returns:
            how many were in flight
        """
        count = 0
        back: list[tuple[int, int, int]] = []
        index = self._find(first)
        while index < len(self._firsts) and self._firsts[index] <= last:
            low, high = max(self._firsts[index], first), min(self._lasts[index], last)
            if low <= high and self._dues[index] > _QUEUED:
                index = self._isolate(low, high)
                count += high - low + 1
                if delay_ms:
                    self._set_due(index, now_ms + delay_ms)
                elif not self._give_up(index):
                    self._dues[index] = _QUEUED
                    self.queued += high - low + 1
                    back.append((low, high, 0))
            index += 1
        self._queue[:0] = back
        return count

    def fall_due(self, committed_seq: int, now_ms: int) -> None:
        """Queue, or give up, what was in flight until now; :meth:`plan` does it too."""
        barrier = min(committed_seq, self.next_seq - 1 + _OVERTAKEN)
        earliest_ms = _NEVER
        for index, due_ms in enumerate(self._dues):
            if due_ms <= _QUEUED:
                continue
            if due_ms > now_ms:
                earliest_ms = min(earliest_ms, due_ms)
                continue
            if not self._give_up(index):
                first, last = self._firsts[index], self._lasts[index]
                self._dues[index] = _QUEUED
                self._queue.append((first, last, barrier))
                self.queued += last - first + 1
        self._next_due_ms = earliest_ms

    def _give_up(self, index: int) -> bool:
        """Whether this run was delivered as often as the policy allows; it is given up then."""
        attempts, attempts_max = self._attempts[index], self.policy.deliveries_max
        if not attempts_max or attempts < attempts_max:
            return False
        self._dues[index] = _GIVEN_UP
        self.given_up.append(Run(self._firsts[index], self._lasts[index], attempts, _GIVEN_UP))
        return True

    # --- moves of the log under the cursor

    def jump(self, log_start: int) -> int:
        """Retention removed what is below ``log_start``.

        Returns:
            how many unacknowledged records went away
        """
        lost = self.acknowledge(0, log_start - 1)
        self.next_seq = max(self.next_seq, log_start)
        return lost

    def cut(self, end_seq: int) -> int:
        """The log ends at ``end_seq``, before the cursor's position: go back to its end.

        Returns:
            how many numbers the position was beyond the end
        """
        beyond = max(self.next_seq - 1 - end_seq, 0)
        if beyond:
            self.acknowledge(end_seq + 1, self.next_seq)
            self.next_seq = end_seq + 1
        return beyond

    def reset(self, next_seq: int) -> None:
        """Forget everything and begin again at ``next_seq``."""
        self.acknowledge(0, self.next_seq)
        self.given_up.clear()
        self.next_seq = next_seq

    # --- stored form

    def dump(self) -> list[int]:
        """A flat list of small integers: next_seq, then per run its distance from the end of the one before it
        (the first one: from next_seq, backwards), length and attempts."""
        flat = [self.next_seq]
        end = 0
        for first, last, attempts in zip(self._firsts, self._lasts, self._attempts, strict=True):
            flat += (first - end if end else self.next_seq - first, last - first + 1, attempts)
            end = last
        return flat

    # --- the lists

    def _find(self, seq: int) -> int:
        """The index of the run that holds ``seq``, or of one beside it."""
        if not self._firsts or seq <= self._firsts[0]:
            return 0
        return bisect_right(self._firsts, seq) - 1

    def append_run(self, first: int, last: int, attempts: int, due_ms: int) -> None:
        """A run after all others; one with the last run when it goes on there."""
        self.unacknowledged += last - first + 1
        end = len(self._lasts) - 1
        if end >= 0 and self._lasts[end] + 1 == first and self._dues[end] == due_ms and self._attempts[end] == attempts:
            self._lasts[end] = last
        else:
            self._firsts.append(first)
            self._lasts.append(last)
            self._attempts.append(attempts)
            self._dues.append(due_ms)
            if _QUEUED < due_ms < self._next_due_ms:
                self._next_due_ms = due_ms

    def queue_all(self) -> None:
        """Queue all runs, which must be new, in order and before anything that was never delivered."""
        for index in range(len(self._firsts)):
            first, last = self._firsts[index], self._lasts[index]
            self._queue.append((first, last, 0))
            self.queued += last - first + 1

    def _set_due(self, index: int, due_ms: int) -> None:
        self._dues[index] = due_ms
        if due_ms < self._next_due_ms:
            self._next_due_ms = due_ms

    def _split(self, index: int, at: int) -> None:
        """Make run ``index`` end before ``at`` and a new one begin there."""
        self._firsts.insert(index + 1, at)
        self._lasts.insert(index, at - 1)
        self._attempts.insert(index, self._attempts[index])
        self._dues.insert(index, self._dues[index])

    def _isolate(self, first: int, last: int) -> int:
        """The index of a run of exactly these numbers, cut out of the one that holds them."""
        index = self._find(first)
        if self._firsts[index] < first:
            self._split(index, first)
            index += 1
        if self._lasts[index] > last:
            self._split(index, last + 1)
        return index

    def _join(self, index: int) -> None:
        """Make one run of this one and the one before it, if they are alike and adjacent."""
        before = index - 1
        if (
            before >= 0
            and self._lasts[before] + 1 == self._firsts[index]
            and self._dues[before] == self._dues[index]
            and self._attempts[before] == self._attempts[index]
        ):
            self._lasts[before] = self._lasts[index]
            del self._firsts[index], self._lasts[index], self._attempts[index], self._dues[index]


def load(flat: Sequence[int], policy: DeliveryPolicy) -> Deliveries:
    """The deliveries that were dumped; what was in flight is queued, before anything new.

    Raises:
        ValueError: not a dump
    """
    if len(flat) % 3 != 1 or not all([isinstance(number, int) and 0 <= number < _NEVER for number in flat]):  # noqa: C419  (cpdef functions take no generators)
        raise ValueError("the deliveries of a cursor are a list of 1 + 3n numbers")
    deliveries = Deliveries(flat[0], policy)
    end = 0
    for at in range(1, len(flat), 3):
        distance, length, attempts = flat[at], flat[at + 1], flat[at + 2]
        first = end + distance if end else deliveries.next_seq - distance
        end = first + length - 1
        if distance < 1 or first < 1 or length < 1 or end >= deliveries.next_seq:
            raise ValueError("the runs of a cursor do not ascend")
        deliveries.append_run(first, end, attempts, _QUEUED)
    deliveries.queue_all()
    return deliveries

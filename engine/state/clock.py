"""The clock that everything durable goes by: the system's, doubted.

A system's clock may be wrong for a while: after a start without a battery, a resumed machine, a mistyped date. What is
kept for a time must not be removed by it. So the time of the log (`DoubtedClock.now_ms`) is counted on by a clock that
nobody sets (time since boot, sleep included), and the system's clock is only looked at now and then:

- off by up to `CLOCK_SLEW_MS`: that is followed, it is the usual correction.
- off by more, in either direction: it jumped. That is believed once it has lasted ``clock_doubt_ms``; a jump that is
  taken back before has no effect at all. One from a time before this program existed to one behind it is believed
  at once, and so is the first one to a time that is likely when the start's was not.
- a jump that is believed makes nothing older: what was stamped before it, or is dated behind it, counts as stamped at
  the moment of belief (a *leap*). It is kept longer, by no more than the time that things of its kind are kept.

At a start the time is the system's if that lies not far behind the last known time of the log: nothing else tells how
long the machine was off. For ``clock_doubt_ms`` that time is not counted (it is *held*); a clock that is set back by
no more than that meanwhile was wrong at the start.

The last known time and the last leap are kept in `state`, key ``c/clock``: ``[now ms, leap ms]``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import Corrupt
from engine.limits import (
    CLOCK_DOUBT_MS,
    CLOCK_OFF_MAX_MS,
    CLOCK_PLAUSIBLE_MS,
    CLOCK_SAVE_MS,
    CLOCK_SLEW_MS,
    CLOCK_STEP_MS,
)
from engine.state.store import COUNTER, Put, StateReader, StateStore

if TYPE_CHECKING:
    from engine.errors import EngineError

KEY = COUNTER + b"clock"

logger = logging.getLogger("quintlog.engine")


def steady_ms() -> int:
    """Milliseconds of a clock that nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970, as the system's clock says."""
    return time.time_ns() // 1_000_000


class StoredClock(NamedTuple):
    """What an earlier process knew."""

    now_ms: int
    """The time of the log when it was last written down."""
    leap_ms: int
    """The time of the last leap; 0: there was none."""


class _Doubted(NamedTuple):
    """A jump that has not lasted long enough; both by the steady clock."""

    offset_ms: int
    since_ms: int


class DoubtedClock:
    """See the module's text. `now_ms` and `age_ms` may be called on any thread, `look` on the owner's.

    Attributes:
        started_ms: when this was made, by the steady clock.
        held_ms: time between the last process and this one that is not counted yet.
        excess_ms: by how much `likely_age_ms` of what was stamped before the start was too large, all in all.
        leap_ms: what was stamped before counts from then on.
    """

    def __init__(
        self,
        report: Callable[[str], None] = logger.warning,
        known: StoredClock | None = None,
        doubt_ms: int = CLOCK_DOUBT_MS,
    ) -> None:
        self._report = report
        self._doubt_ms = doubt_ms
        self.started_ms = steady_ms()
        self.held_ms = 0
        self.excess_ms = 0
        self.leap_ms = 0
        self._doubted: _Doubted | None = None
        self._is_lost = False
        """The time at the start was not likely."""
        self._saved: StoredClock | None = None
        now_ms = wall_ms()
        if known is not None:
            self.leap_ms = known.leap_ms
            off_ms = now_ms - known.now_ms
            self._is_lost = not -CLOCK_SLEW_MS <= off_ms <= CLOCK_OFF_MAX_MS
            if self._is_lost:
                now_ms = known.now_ms
            elif off_ms > CLOCK_STEP_MS:
                self.held_ms = off_ms
        self._offset_ms = now_ms - self.started_ms
        """The time of the log less the steady clock's."""
        self.look()

    def now_ms(self) -> int:
        """The time of the log, in milliseconds since 1970: what everything durable is stamped with."""
        return steady_ms() + self._offset_ms

    @property
    def doubted_ms(self) -> int:
        """How far the system's clock is ahead (negative: behind) by a jump that is not believed yet."""
        return self._doubted.offset_ms - self._offset_ms if self._doubted is not None else 0

    def age_ms(self, stamp_ms: int) -> int:
        """Time that has passed since something was stamped, as far as it is sure: at least 0."""
        return max(0, self.likely_age_ms(stamp_ms) - self.held_ms)

    def likely_age_ms(self, stamp_ms: int) -> int:
        """The same with the time between the last process and this one, be it believed yet or not."""
        now_ms = self.now_ms()
        if stamp_ms > now_ms + CLOCK_STEP_MS:
            stamp_ms = self.leap_ms or now_ms
        return max(0, now_ms - max(stamp_ms, self.leap_ms))

    def before_ms(self, age_ms: int) -> int:
        """What was stamped before this time is older than that for sure."""
        before_ms = self.now_ms() - self.held_ms - age_ms
        return before_ms if before_ms >= self.leap_ms else 0

    def look(self) -> None:
        """Looks at the system's clock; to be called every few seconds."""
        steady_now_ms = steady_ms()
        offset_ms = wall_ms() - steady_now_ms
        jump_ms = offset_ms - self._offset_ms
        if steady_now_ms - self.started_ms >= self._doubt_ms:
            self.held_ms = 0
        if abs(self.doubted_ms) > CLOCK_STEP_MS >= abs(jump_ms):
            self._report("the system's clock is right again: what it said meanwhile had no effect")
        if abs(jump_ms) <= CLOCK_SLEW_MS:
            self._doubted = None
            self._is_lost = False
            self._offset_ms = offset_ms
        elif -self.held_ms <= jump_ms < 0:
            self.held_ms += jump_ms
            self.excess_ms -= jump_ms
            self._report(f"the system's clock was {-jump_ms // 1000} s ahead at the start; it was set back")
            self._believe(offset_ms, steady_now_ms)
        elif self._is_found_by(jump_ms):
            self._believe(offset_ms, steady_now_ms)
        elif self._doubted is None or abs(offset_ms - self._doubted.offset_ms) > CLOCK_SLEW_MS:
            self._doubted = _Doubted(offset_ms, steady_now_ms)
            if abs(jump_ms) > CLOCK_STEP_MS:
                self._report(
                    f"the system's clock was set {'forward' if jump_ms > 0 else 'back'} by {abs(jump_ms) // 1000} s: "
                    f"that is believed if it lasts {self._doubt_ms / 60_000:.3g} minutes, and has no effect until then"
                )
        elif steady_now_ms - self._doubted.since_ms >= self._doubt_ms:
            self._believe(offset_ms, steady_now_ms)

    def _is_found_by(self, jump_ms: int) -> bool:
        """Whether a jump leads from a time that is not likely to one that is."""
        now_ms = self.now_ms()
        if self._is_lost and 0 < jump_ms <= CLOCK_OFF_MAX_MS:
            return True
        return now_ms < CLOCK_PLAUSIBLE_MS <= now_ms + jump_ms

    def _believe(self, offset_ms: int, steady_now_ms: int) -> None:
        jump_ms = offset_ms - self._offset_ms
        self._offset_ms = offset_ms
        self._doubted = None
        self._is_lost = False
        if abs(jump_ms) > CLOCK_STEP_MS:
            self.leap_ms = steady_now_ms + offset_ms
            self._report(
                f"the system's clock is believed, {abs(jump_ms) // 1000} s {'ahead of' if jump_ms > 0 else 'behind'} "
                "the time so far; the age of all that was stored before counts from now on"
            )

    def save(self, state: StateStore, *, is_last: bool = False) -> None:
        """Writes down what the next process has to know, if that is due; at the end it is."""
        known = StoredClock(self.now_ms() - self.held_ms, self.leap_ms)
        saved = self._saved
        is_new = saved is None or saved.leap_ms != known.leap_ms or known.now_ms - saved.now_ms >= CLOCK_SAVE_MS
        if not is_new and not is_last:
            return
        self._saved = known

        def done(error: EngineError | None) -> None:
            if error is not None:
                self._saved = None

        state.submit([Put(KEY, list(known))], done)


def stored_clock(state: StateReader | StateStore) -> StoredClock | None:
    """What an earlier process has saved; None: nothing, or it is damaged."""
    try:
        value = state.get(KEY)
    except Corrupt:
        return None
    match value:
        case [int() as now_ms, int() as leap_ms]:
            return StoredClock(now_ms, leap_ms)
    return None

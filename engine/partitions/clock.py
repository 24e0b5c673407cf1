"""Clocks for retention: one that only counts on, and the system's, not believed at once when somebody set it forward.

A clock that is wrong by years for a minute must not remove what it makes look old. Against a clock that only counts on
(time since boot, sleep included) a step of the system's clock is seen. A step back only makes records stay longer. A
step forward of more than `CLOCK_STEP_MS` is taken over once it has lasted `CLOCK_DOUBT_MS`: until then time goes on
from where it was. The clock that is found at the start is believed: nothing else is known then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.limits import CLOCK_DOUBT_MS, CLOCK_STEP_MS


def steady_ms() -> int:
    """Milliseconds of a clock that nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class RetentionClock:
    """See the module's text. `now_ms` is to be asked every few seconds."""

    def __init__(self, report: Callable[[str], None], wall_ms: int, steady: Callable[[], int] = steady_ms) -> None:
        self._report = report
        self._steady = steady
        self._time_ms = wall_ms
        self._seen_ms = steady()
        self._doubted_since_ms: int | None = None

    def now_ms(self, wall_ms: int) -> int:
        """The time to go by, now that the system's clock says `wall_ms`."""
        seen_ms = self._steady()
        expected_ms = self._time_ms + seen_ms - self._seen_ms
        self._seen_ms = seen_ms
        self._time_ms = expected_ms
        if wall_ms <= expected_ms + CLOCK_STEP_MS:
            self._doubted_since_ms = None
            self._time_ms = wall_ms
        elif self._doubted_since_ms is None:
            self._doubted_since_ms = seen_ms
            self._report(
                f"the system's clock was set forward by {(wall_ms - expected_ms) // 1000} s: "
                f"retention by age believes it if it stays so for {CLOCK_DOUBT_MS // 60_000} minutes"
            )
        elif seen_ms - self._doubted_since_ms >= CLOCK_DOUBT_MS:
            self._doubted_since_ms = None
            self._time_ms = wall_ms
        return self._time_ms

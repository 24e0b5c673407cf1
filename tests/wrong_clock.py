"""Time as tests let it pass: a system's clock that is set by them, and the steady one beside it."""

from __future__ import annotations

import pytest

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
DAY = 24 * HOUR
YEAR = 365 * DAY
START_MS = 1_795_773_600_000


class Time:
    """Real time, and a system's clock that is off by `offset_ms`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real_ms = 0
        self.offset_ms = START_MS
        monkeypatch.setattr("engine.state.clock.wall_ms", self.wall_ms)
        monkeypatch.setattr("engine.state.clock.steady_ms", self.steady_ms)
        monkeypatch.setattr("engine.log.steady_ms", self.steady_ms)

    def pass_on(self, ms: int) -> None:
        self.real_ms += ms

    def wall_ms(self) -> int:
        return self.real_ms + self.offset_ms

    def steady_ms(self) -> int:
        return self.real_ms + 17 * DAY

    @property
    def right_ms(self) -> int:
        """What a clock says that nobody has set."""
        return START_MS + self.real_ms

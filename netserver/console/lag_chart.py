"""The lag of a group over the last hour: a line of SVG, and the same in words for whoever does not see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.limits import LAG_HISTORY_SAMPLES, LAG_SAMPLE_MS
from netserver.console.formatting import count_text, span_text

WIDTH: Final = 600
HEIGHT: Final = 80
POINTS: Final = 120
"""Of a line: each is the highest of some samples, so that no peak is lost."""


@dataclass(frozen=True, slots=True)
class LagChart:
    """A chart.

    Attributes:
        points: of an SVG polyline, the newest at the right edge; an hour is the whole width.
        text: what it shows.
    """

    points: str
    text: str
    width: int = WIDTH
    height: int = HEIGHT


def lag_chart(samples: Sequence[int]) -> LagChart | None:
    """The chart of samples, the newest last; None: there are too few for a line."""
    if len(samples) < 2:
        return None
    every = LAG_HISTORY_SAMPLES // POINTS
    newest_first = samples[::-1]
    peaks = [max(newest_first[at : at + every]) for at in range(0, len(samples), every)][::-1]
    top, step = max(peaks), WIDTH / (POINTS - 1)
    left, height = WIDTH - step * (len(peaks) - 1), HEIGHT - 2
    points = [(left + at * step, 1 + height - height * peak / max(top, 1)) for at, peak in enumerate(peaks)]
    if len(points) == 1:
        points.insert(0, (points[0][0] - step, points[0][1]))
    since = span_text((len(samples) - 1) * LAG_SAMPLE_MS / 1000)
    ago = span_text(newest_first.index(max(samples)) * LAG_SAMPLE_MS / 1000)
    text = f"Lag in records over {since}: {count_text(samples[0])} at first, {count_text(samples[-1])} now"
    if top:
        text += f", at most {count_text(top)} ({ago} ago), at least {count_text(min(samples))}"
    return LagChart(" ".join(f"{x:.1f},{y:.1f}" for x, y in points), text)

"""A bar chart of publishing rates, by durability, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from bench.harness import Row

COLORS = {"always": "#1b6ca8", "never": "#5fa55a"}
OTHER_COLOR = "#9db4c0"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR = 900, 300, 90, 44, 24, 16
DECADES = (1e3, 1e4, 1e5, 1e6, 1e7)


def draw(rows: Sequence[Row]) -> str:
    """One bar for each publishing row of 100 B, on a logarithmic axis from 1,000 to 10,000,000 messages/s."""
    beginnings = (
        "redis",
        "jetstream",
        "figg publish",
        "tank produce",
        "blipmq publish",
        "fujin publish",
        "fujin write",
    )
    chosen = [row for row in rows if row.size == 100 and row.name.startswith(beginnings)]
    chosen.sort(key=lambda row: -row.per_second)
    height = TOP + STEP * len(chosen) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="14">acknowledged messages of 100 B per second (dark blue: after fdatasync)</text>',
    ]
    for value in DECADES:
        x = _x(value)
        lines.append(f'<line x1="{x:.0f}" y1="{TOP - 8}" x2="{x:.0f}" y2="{height - 8}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x:.0f}" y="{TOP - 12}" text-anchor="middle" fill="#666666">{value:,.0f}</text>')
    for number, row in enumerate(chosen):
        y = TOP + STEP * number
        end = _x(max(row.per_second, DECADES[0]))
        color = COLORS.get(row.durability, OTHER_COLOR)
        label = escape(f"{row.name} ({row.durability})")
        lines.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{max(end - LEFT, 1):.1f}" height="{BAR}" fill="{color}"/>')
        lines.append(f'<text x="{end + 6:.0f}" y="{y + 12}">{row.per_second / 1e3:,.0f} k/s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _x(value: float) -> float:
    low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
    return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

"""A bar chart of publishing rates, by durability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.endtoend import Row

COLORS = {"always": "#1b6ca8", "everysec": "#9db4c0", "2 min": "#9db4c0", "never": "#5fa55a"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes an SVG with one bar for each publishing row of 100 B."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    chosen = [
        row for row in rows if row.size == 100 and ("publish" in row.name or row.name.startswith(("redis", "jet")))
    ]
    chosen.sort(key=lambda row: row.per_second)
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(chosen) + 1.2), layout="constrained")
    bars = axes.barh(
        [f"{row.name} ({row.durability})" for row in chosen],
        [row.per_second for row in chosen],
        color=[COLORS.get(row.durability, "#777777") for row in chosen],
    )
    axes.bar_label(bars, [f" {row.per_second / 1e3:,.0f} k/s" for row in chosen], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("acknowledged messages of 100 B per second (dark: after fdatasync)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})

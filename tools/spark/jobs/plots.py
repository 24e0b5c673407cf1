"""The report of job `stats` as pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]
BARS = 30
"""At most so many bars in a picture: more cannot be read."""


def plain(text: object) -> str:
    """A name as it is: matplotlib takes what stands between dollar signs for a formula."""
    return str(text).replace("$", r"\$")


def by_topic(lines: Lines) -> dict[str, Lines]:
    """The lines of each topic."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        found[line["topic"]].append(line)
    return dict(found)


def draw_rates(axes: Axes, lines: Lines, every_s: int) -> None:
    """Records a second over time, a line for each topic; 0 where nothing was published."""
    for topic, points in by_topic(lines).items():
        count = {datetime.fromisoformat(point["start"]).timestamp(): point["records"] for point in points}
        times = range(int(min(count)), int(max(count)) + 1, every_s)
        axes.plot(
            np.array(times, "datetime64[s]"),
            [count.get(time_s, 0) / every_s for time_s in times],
            drawstyle="steps-post",
            marker="." if len(count) == 1 else "",
            label=plain(topic),
        )
    axes.set_xlabel("UTC")
    axes.set_ylabel("records/s")
    axes.legend()


def draw_sizes(axes: Axes, lines: Lines, quantiles: Sequence[float]) -> None:
    """Which share of a partition's values is at most so large."""
    for line in lines[:BARS]:
        axes.plot(line["sizes"], quantiles, marker=".", label=plain(f"{line['topic']}:{line['partition']}"))
    axes.set_xscale("symlog")
    axes.set_xlabel("bytes of the value")
    axes.set_ylabel("share of records at most so large")
    axes.legend()


def draw_bars(axes: Axes, bars: Mapping[str, int], label: str) -> None:
    """Names from top to bottom, a bar for each."""
    names = list(bars)[:BARS]
    axes.barh(names, [bars[name] for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(label)


def pictures(report: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """File names and pictures; none of what there is nothing of."""

    def picture(title: str) -> tuple[Figure, Axes]:
        figure = Figure(figsize=(10, 5), layout="constrained")
        return figure, figure.add_subplot(title=title)

    if report["rates"]:
        figure, axes = picture("Rates by topic")
        draw_rates(axes, report["rates"], report["every_s"])
        yield "rates.png", figure
    if report["partitions"]:
        figure, axes = picture("Sizes by partition")
        draw_sizes(axes, report["partitions"], report["size_quantiles"])
        yield "sizes.png", figure
    if report["keys"]:
        figure, axes = picture("Most frequent keys")
        keys = {
            plain(f"{line['topic']} {line.get('key', line.get('key_base64'))}"): line["records"]
            for line in sorted(report["keys"], key=lambda line: -line["records"])
        }
        draw_bars(axes, keys, "records")
        yield "keys.png", figure
    if report["lag"]:
        figure, axes = picture("Lag of subscriptions")
        lags = {plain(f"{item['topic']} {item['protocol']} {item['id']}"): item["lag"] or 0 for item in report["lag"]}
        draw_bars(axes, lags, "records")
        yield "lag.png", figure


def draw(report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Writes the pictures; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in pictures(report):
        figure.savefig(directory / name, dpi=100)
        paths.append(directory / name)
    return paths

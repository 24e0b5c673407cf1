"""The first page: what is promised, what goes on, how long the disk lasts, what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.histogram import Histogram
from netserver.admin.stored_sizes import StoredSizes
from netserver.console.history import History, quantile
from netserver.console.pages import Answer, Page, Visit
from netserver.contract import contract

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from netserver.admin.api import Api
    from netserver.admin.served import Served

CHART_POINTS: Final = 180
CHART_WIDTH: Final = 600
CHART_HEIGHT: Final = 80
STORED_FRESH_S: Final = 10.0
DISK_LOW_SHARE: Final = 0.05
DAYS_LEFT_FEW: Final = 3.0
CERTIFICATE_DAYS: Final = 14
UNSYNCED_OLD_S: Final = 60.0
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that somebody has to see to.

    Attributes:
        page: of the console that tells more; empty: none.
    """

    text: str
    page: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart, by the points of an SVG polyline.

    Attributes:
        number: of its colour.
    """

    name: str
    number: int
    points: str


class OverviewViews:
    """See the module."""

    def __init__(self, server: Served, api: Api, history: History) -> None:
        self._server = server
        self._api = api
        self._history = history
        self._stored = StoredSizes(server.log)
        self._stored_at_s = float("-inf")
        self._measuring = asyncio.Lock()

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {"GET ": self.overview}

    async def overview(self, _visit: Visit) -> Answer:
        """Everything at a glance."""
        server, history = self._server, self._history
        status = await self._api.status()
        await self._measure()
        protocols = [*server.counters.values(), server.http]
        rate = history.free_rate()
        days = status["disk_free_bytes"] / -rate / DAY_S if rate is not None and rate < 0 else None
        committer = server.log.committer
        values = {
            "status": status,
            "promise": contract(server.config),
            "unsynced_age_s": committer.interval_syncs.oldest_age_s(),
            "protocols": [(one, {field: history.rate(one.name, field) for field in _FIELDS}) for one in protocols],
            "published": self._lines("records_published"),
            "delivered": self._lines("records_delivered"),
            "ack_p50_s": history.ack_s(0.5),
            "ack_p99_s": history.ack_s(0.99),
            "sync_p99_s": _quantile(server.rounds.sync, 0.99),
            "stored": self._stored,
            "disk_rate": rate,
            "days_left": days,
            "alarms": [*self._alarms(), *self._disk_alarms(status["disk_free_bytes"], status["disk_size_bytes"], days)],
            "width": CHART_WIDTH,
            "height": CHART_HEIGHT,
        }
        return Page("overview.html", "Overview", values)

    async def _measure(self) -> None:
        """Looks at the sizes of all partitions, unless that was done just now: several pages may be open."""
        async with self._measuring:
            if time.monotonic() - self._stored_at_s > STORED_FRESH_S:
                await self._stored.measure()
                self._stored_at_s = time.monotonic()

    def _lines(self, field: str) -> tuple[list[Line], float]:
        """The lines of a chart of the protocols that did something, and the highest rate."""
        names = [*self._server.counters, self._server.http.name]
        series = {name: self._history.rates(name, field, CHART_POINTS) for name in names}
        top = max((max(rates, default=0.0) for rates in series.values()), default=0.0)
        lines = [
            Line(name, number, _points(rates, top)) for number, (name, rates) in enumerate(series.items()) if any(rates)
        ]
        return lines, top

    def _alarms(self) -> list[Alarm]:
        server, engine = self._server, self._server.log
        found = []
        if reason := self._api.not_ready_reason():
            found.append(Alarm(f"The server does not serve: {reason}"))
        for title, problem in list(engine.parts.unopened.items())[:10]:
            found.append(Alarm(f"{title} cannot be opened: {problem}", "storage"))
        if self._stored.read_only:
            found.append(Alarm(f"{self._stored.read_only} partitions take no records", "storage"))
        if count := engine.figures.damaged_batches:
            records = engine.figures.damaged_records
            text = f"{count} damaged batches with {records} records were found since the start"
            found.append(Alarm(f"{text}; `logtool verify` names them"))
        if count := engine.figures.lost_records:
            found.append(Alarm(f"{count} committed records were found missing; `logtool repair` shows them"))
        if count := engine.committer.counters.sync_failures:
            found.append(Alarm(f"{count} syncs failed; the server's log names the files"))
        for title, problem in list(engine.housekeeping.failing.items())[:10]:
            found.append(Alarm(f"Old segments of {title} cannot be removed: {problem}"))
        for name, error in server.failed.items():
            found.append(Alarm(f"{name} does not listen: {error}"))
        age_s = engine.committer.interval_syncs.oldest_age_s()
        if age_s > UNSYNCED_OLD_S:
            found.append(Alarm(f"The oldest record that is not synced is {age_s:.0f} s old"))
        if not server.reload_success:
            found.append(Alarm("The last reload of the configuration failed; the server's log says why", "settings"))
        if server.restart_needed:
            found.append(Alarm(f"Changed settings wait for a restart: {', '.join(server.restart_needed)}", "settings"))
        return found

    @staticmethod
    def _disk_alarms(free_bytes: int, size_bytes: int, days_left: float | None) -> list[Alarm]:
        found = []
        if free_bytes < DISK_LOW_SHARE * size_bytes:
            found.append(Alarm(f"Only {100 * free_bytes / max(size_bytes, 1):.1f} % of the disk is free", "storage"))
        if days_left is not None and days_left < DAYS_LEFT_FEW:
            found.append(Alarm(f"The disk is full in {days_left:.1f} days if it goes on like this", "storage"))
        return found


_FIELDS: Final = ("records_published", "published_bytes", "records_delivered", "delivered_bytes")


def _quantile(source: Histogram, share: float) -> float | None:
    return quantile(source.counts, source.bounds, share)


def _points(rates: Sequence[float], top: float) -> str:
    """The newest at the right edge; a quarter of an hour is the whole width."""
    step = CHART_WIDTH / (CHART_POINTS - 1)
    left = CHART_WIDTH - step * (len(rates) - 1)
    height = CHART_HEIGHT - 2
    return " ".join(
        f"{left + at * step:.1f},{1 + height - height * rate / max(top, 1e-9):.1f}" for at, rate in enumerate(rates)
    )

"""What lies on the disk: the largest topics, and the segments of one as bars."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from netserver.admin.slices import sliced
from netserver.console.formatting import name_text
from netserver.console.limits import CONSOLE_SEGMENTS_SHOWN
from netserver.console.pages import Answer, Page, Visit
from netserver.console.topics import TopicViews

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.admin.api import Api
    from netserver.admin.served import Served

BAR_WIDTH: Final = 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment file; ``state`` is "sealed" or "active"."""

    name: str
    state: str
    first_seq: int
    last_seq: int
    records: int
    size_bytes: int
    newest_ms: int | None


class StorageViews:
    """See the module."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {"GET storage": self.storage, "GET storage/TOPIC": self.topic}

    async def storage(self, visit: Visit) -> Answer:
        """Room, damage, and a page of topics with their sizes."""
        engine = self._server.log
        page = await TopicViews(self._server, self._api).page(visit)
        assert isinstance(page, Page)
        largest = max((row["size_bytes"] or 0 for row in page.values["rows"]), default=0)
        values = {
            "status": await self._api.status(),
            "figures": engine.figures,
            "unopened": list(engine.parts.unopened.items())[:100],
            "read_only": [(one.title, str(one.error)) for one in await self._failed()],
            "sync_failures": engine.committer.counters.sync_failures,
            "housekeeping": engine.housekeeping,
            "largest": max(largest, 1),
            "bar_width": BAR_WIDTH,
        }
        return Page("storage.html", "Storage", page.values | values)

    async def topic(self, visit: Visit) -> Answer:
        """The segments of each partition, the newest ones of many."""
        topic = self._api.find(visit.parts[1])
        wanted = visit.query.get("partition", "0")
        index = min(int(wanted[:10]) if wanted.isascii() and wanted.isdigit() else 0, topic.partition_count - 1)
        problem, count = "", 0
        bars: list[Bar] = []
        if index in topic.numbers:
            try:
                partition = await self._api.opened(topic, index)
                bars, count = _bars(partition), len(partition.sealed) + 1
            except EngineError as error:
                problem = str(error)
        values = {
            "topic": topic,
            "index": index,
            "bars": bars,
            "count": count,
            "largest": max((bar.size_bytes for bar in bars), default=0) or 1,
            "problem": problem,
            "bar_width": BAR_WIDTH,
        }
        return Page("segments.html", f"Segments of {name_text(topic.name)}", values)

    async def _failed(self) -> list[Partition]:
        """The first hundred partitions that take no records."""
        log = self._server.log
        found: list[Partition] = []
        async for partition in sliced(log.slices, log.known_partitions()):
            if partition.error is not None and len(found) < 100:
                found.append(partition)
        return found


def _bars(partition: Partition) -> list[Bar]:
    if not partition.has_files:
        return []
    bars = [
        Bar(one.path.name, "sealed", one.first_seq, one.last_seq, one.records, one.size_bytes, one.last_append_ms)
        for one in partition.sealed[-CONSOLE_SEGMENTS_SHOWN:]
    ]
    active = partition.active_segment
    first = active.header.first_seq
    return [*bars, Bar("", "active", first, partition.committed_seq, active.records, partition.committed_end, None)]

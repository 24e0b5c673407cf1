"""The admin API's part that only looks: segments, damage, the settings in force, and a summary for everybody here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from netserver.admin.api import Api
from netserver.admin.slices import sliced
from netserver.config.sections import ServerConfig
from netserver.config.table import DEFAULT, TABLE
from netserver.limits import ADMIN_PROBLEMS_SHOWN
from netserver.version import product_version

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.admin.served import Served

Document = dict[str, Any]


class InspectionApi:
    """The operations; errors of the engine pass through."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api

    def summary(self) -> Document:
        """What whoever is on this machine may know without a token."""
        log = self._server.log
        return {
            "schema": 1,
            "version": product_version(),
            "ready": not self._api.not_ready_reason(),
            "topics": len(log.catalog),
            "partitions": log.catalog.partition_total,
            "subscriptions": len(log.cursors),
        }

    async def version(self) -> Document:
        """What runs here."""
        return {"schema": 1, "version": product_version()}

    async def segments(self, name: bytes) -> Document:
        """The segment files of a topic, by partition, the oldest first."""
        topic = self._api.find(name)
        items = []
        async for index in sliced(self._server.log.slices, sorted(topic.numbers)):
            opened = await self._api.opened(topic, index)
            async for item in sliced(self._server.log.slices, _segments(opened)):
                items.append(item)
        return {"schema": 1, "items": items}

    async def damage(self) -> Document:
        """What was found damaged since the start, and what is not served because of it."""
        engine = self._server.log
        read_only: list[Document] = []
        async for one in sliced(engine.slices, engine.known_partitions()):
            problem = one.error or one.failing
            if problem is not None and len(read_only) < ADMIN_PROBLEMS_SHOWN:
                read_only.append({"partition": one.title, "problem": str(problem)})
        unopened = list(engine.parts.unopened.items())[:ADMIN_PROBLEMS_SHOWN]
        failing = list(engine.housekeeping.failing.items())[:ADMIN_PROBLEMS_SHOWN]
        return {
            "schema": 1,
            "damaged_batches": engine.figures.damaged_batches,
            "damaged_records": engine.figures.damaged_records,
            "lost_records": engine.figures.lost_records,
            "sync_failures": engine.committer.counters.sync_failures,
            "unopened": [{"partition": str(title), "problem": str(problem)} for title, problem in unopened],
            "read_only": read_only,
            "retention_failing": [{"partition": str(title), "problem": str(problem)} for title, problem in failing],
        }

    async def settings(self) -> Document:
        """Every setting in force, where it comes from, and whether a reload takes a change over."""
        config, defaults = self._server.config, ServerConfig()
        items = [
            {
                "section": entry.section,
                "name": entry.name,
                "value": entry.native(config),
                "default": entry.native(defaults),
                "origin": config.origins.get(entry.title, DEFAULT),
                "reloadable": entry.is_reloadable,
                "variable": entry.variable,
                "help": entry.how.help,
            }
            for entry in TABLE
        ]
        return {"schema": 1, "items": items}


def _segments(partition: Partition) -> Iterator[Document]:
    if not partition.has_files:
        return
    for sealed in partition.sealed:
        yield {
            "partition": partition.index,
            "file": sealed.path.name,
            "state": "sealed",
            "first_offset": sealed.first_seq,
            "last_offset": sealed.last_seq,
            "records": sealed.records,
            "size_bytes": sealed.size_bytes,
            "created_ms": sealed.created_ms,
            "newest_ms": sealed.max_timestamp_ms,
        }
    active = partition.active_segment
    yield {
        "partition": partition.index,
        "file": active.path.name,
        "state": "active",
        "first_offset": active.header.first_seq,
        "last_offset": partition.committed_seq,
        "records": active.records,
        "size_bytes": partition.committed_end,
        "created_ms": active.header.created_ms,
        "newest_ms": active.max_timestamp_ms,
    }

"""Records: a page of them, one of them, and the newest ones while they come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web
from multidict import MultiDict

from engine.errors import LimitReached, UnknownPartition
from netserver.admin.api import NotFound
from netserver.console.formatting import name_text, pretty_json
from netserver.console.limits import (
    CONSOLE_CUT_BYTES,
    CONSOLE_LIVE_MAX,
    CONSOLE_RECORDS,
    CONSOLE_RECORDS_MAX,
    CONSOLE_VALUE_BYTES,
)
from netserver.console.live import Live
from netserver.console.looks import looks_of
from netserver.console.pages import HEADERS, Answer, Page, Visit, link
from netserver.console.searching import Found, Search
from netserver.http.errors import BadRequest
from netserver.http.large import slices_of
from netserver.http.limits import HTTP_PARTITIONS_MAX
from netserver.http.query import Read
from netserver.http.reading import Reader, Remark

if TYPE_CHECKING:
    from engine.formats.record import Record
    from engine.state.topic_entries import Topic
    from netserver.admin.api import Api
    from netserver.admin.served import Served
    from netserver.http.records_api import RecordsApi

VIEWS: Final = ("text", "json", "hex")
ASKED: Final = ("from", "to", "partition", "key", "contains", "where")
"""Parameters of a page of records that mean what they mean in the API."""
_PLAIN: Final = re.compile(rb"[^A-Za-z0-9._-]+")


class RecordViews:
    """See the module."""

    def __init__(self, server: Served, api: Api, records: RecordsApi) -> None:
        self._server = server
        self._api = api
        self._records = records
        self._live_count = 0

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {
            "GET topics/TOPIC/records": self.page,
            "GET topics/TOPIC/records/NAME/NAME": self.record,
            "GET topics/TOPIC/records/NAME/NAME/value": self.value,
            "GET topics/TOPIC/live": self.live,
            "GET topics/TOPIC/download": self.download,
        }

    async def page(self, visit: Visit) -> Answer:
        """A page of records: the newest ones, or those from a position on that pass a filter."""
        topic, query = self._api.find(visit.parts[1]), visit.query
        if topic.partition_count > HTTP_PARTITIONS_MAX:  # all of them together is too much
            query = {"partition": "0", **query}
        limit = _limit(query.get("limit", ""))
        asked = _asked(query)
        newest = asked.start is None and asked.wanted.everything
        if newest:
            asked = _asked({**query, "from": f"-{limit}"})
        newest = newest or (asked.start is not None and asked.start.kind == "before_end")
        starts = await self._records.starts(topic, asked)
        search = Search(
            starts,
            asked.wanted,
            limit,
            newest=newest,
            sender=visit.caller,
            may=visit.may_still,
            slices=self._server.log.slices,
        )
        found = await search.run(self._server.http)
        view = query.get("view", "text")
        asked_for = {name: query[name] for name in ASKED if name in query}
        values = {
            "topic": topic,
            "found": found,
            "query": query,
            "asked": asked_for,
            "limit": limit,
            "view": view if view in VIEWS else "text",
            "views": VIEWS,
            "shown": [(row, self._shown(row.value, row.is_cut, view)) for row in found.rows],
            "newest": newest,
            "next_from": _next_from(found, newest, len(starts)),
            "older_from": _older_from(found, limit, len(starts)),
            "is_live": "live" in query,
        }
        return Page("records.html", f"Records of {name_text(topic.name)}", values)

    async def record(self, visit: Visit) -> Answer:
        """One record, in every form."""
        topic, partition, record = await self._find(visit)
        value = record.value
        is_whole = len(value) <= CONSOLE_VALUE_BYTES
        shown = value[:CONSOLE_VALUE_BYTES]
        values = {
            "topic": topic,
            "partition": partition,
            "record": record,
            "value": shown,
            "is_whole": is_whole,
            "json": pretty_json(shown) if is_whole and not record.is_null else None,
            "key": record.any_key,
            "headers": record.header_pairs(),
            "hex_bytes": CONSOLE_CUT_BYTES,
            "looks": looks_of(topic.name, partition, record) if is_whole else [],
            "last": self._server.log.partition(topic, partition).committed_seq,
        }
        return Page("record.html", f"{name_text(topic.name)} {partition}/{record.seq}", values)

    async def value(self, visit: Visit) -> Answer:
        """A whole value, to be kept as a file."""
        topic, partition, record = await self._find(visit)
        name = _PLAIN.sub(b"_", topic.name[:80]).decode() or "topic"
        disposition = f'attachment; filename="{name}-{partition}-{record.seq}.bin"'
        response = web.StreamResponse(headers={**HEADERS, "Content-Disposition": disposition})
        response.content_type = "application/octet-stream"
        response.content_length = len(record.value)
        await response.prepare(visit.request)
        for piece in slices_of(record.value):
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    async def live(self, visit: Visit) -> Answer:
        """The newest records while they come."""
        if visit.request.headers.get("Upgrade", "").lower() != "websocket":
            raise BadRequest("This address is for WebSockets; the page of records uses it")
        topic, asked = self._api.find(visit.parts[1]), _asked(visit.query)
        partitions = [start[0] for start in await self._records.starts(topic, asked)]
        if self._live_count >= CONSOLE_LIVE_MAX:
            raise LimitReached(f"{CONSOLE_LIVE_MAX} pages are live already; close some")
        base_path = visit.settings.base_path

        def href(partition: int, offset: int) -> str:
            return link(base_path, "topics", topic.name, "records", str(partition), str(offset))

        self._live_count += 1
        try:
            live = Live(
                partitions,
                asked.wanted,
                self._server.http,
                href,
                visit.caller,
                visit.may_still,
                self._server.log.slices,
            )
            with _subscribed(visit):
                return await live.serve(visit.request)
        finally:
            self._live_count -= 1

    async def download(self, visit: Visit) -> Answer:
        """Any number of records, as the API gives them: a page's filter and ``format`` say which and how."""
        with _subscribed(visit):
            return await self._records.read(visit.request, visit.parts[1], visit.caller, visit.may_still)

    # --- inside

    async def _find(self, visit: Visit) -> tuple[Topic, int, Record]:
        """The record that a path names. Raises NotFound, EngineError."""
        topic = self._api.find(visit.parts[1])
        index, seq = (_whole(part) for part in (visit.parts[3], visit.parts[4]))
        if index >= topic.partition_count:
            raise UnknownPartition(f"the topic has {topic.partition_count} partitions, the first one is 0")
        partition = await self._api.opened(topic, index)
        if partition.log_start <= seq <= partition.committed_seq:
            start, slices = (partition, seq, seq + 1, 0), self._server.log.slices
            reader = Reader([start], visit.caller, visit.may_still, slices, self._server.http)
            try:
                async for piece in reader.pieces(None):
                    for item in piece:
                        if isinstance(item, Remark):
                            raise NotFound(f"record {seq} is not there any more: {item.text}")
                        if item[1].seq == seq:
                            return topic, index, item[1]
            finally:
                reader.close()
        reach = f"{partition.log_start} to {partition.committed_seq}"
        raise NotFound(f"there is no record {seq}; partition {index} has {reach}, some numbers may be left out")

    @staticmethod
    def _shown(value: bytes, is_cut: bool, view: str) -> str | None:
        """JSON in lines; None: as it is."""
        return pretty_json(value) if view == "json" and not is_cut else None


@contextmanager
def _subscribed(visit: Visit) -> Iterator[None]:
    """Meanwhile they have one subscription more; the connection ends when they may not read any more."""

    def end() -> None:
        if visit.request.transport is not None:
            visit.request.transport.abort()

    with visit.caller.subscribed(visit.seat), visit.watched(end):
        yield


def _asked(query: dict[str, str]) -> Read:
    """Raises BadRequest."""
    return Read.of(MultiDict([(name, query[name]) for name in ASKED if name in query]), "")


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit():
        return min(max(int(text[:6]), 1), CONSOLE_RECORDS_MAX)
    return CONSOLE_RECORDS


def _whole(part: bytes) -> int:
    if not (part.isdigit() and len(part) <= 20):
        raise NotFound("there is no such page")
    return int(part)


def _next_from(found: Found, newest: bool, partitions: int) -> str | None:
    """Where the page behind this one begins: of several partitions by time, so that records may come twice."""
    if partitions == 1:
        return str(found.next_seq) if found.next_seq and not (newest and not found.is_stopped) else None
    if newest or not found.rows:
        return None
    first_ms, last_ms = found.rows[0].timestamp_ms, found.rows[-1].timestamp_ms
    return f"@{last_ms if last_ms > first_ms else last_ms + 1:013d}"


def _older_from(found: Found, limit: int, partitions: int) -> str | None:
    """Where the page before this one begins."""
    if partitions > 1 or not found.rows or found.rows[0].offset <= 1:
        return None
    return str(max(found.rows[0].offset - limit, 1))

"""Newest records while they come: a WebSocket that tells the newest ones four times a second, and how many it passed
over. A page answers each message when it has shown it, so that nothing waits for a slow or paused one.

A message to the page, all numbers as texts, which JavaScript keeps exact::

    {"rows": [{"partition", "offset", "time", "key", "value", "size", "cut", "href"}], "new": records since the last
     message, "passed": those of them that are not in rows, "rate": records a second, "behind": partition's last offset}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from engine.errors import EngineError
from netserver.access.access import Forbidden
from netserver.console.formatting import NULL, count_text, name_text, size_text, text_of, time_text
from netserver.console.limits import CONSOLE_LIVE_RECORDS, CONSOLE_LIVE_S
from netserver.console.searching import Row, Search
from netserver.http.socket import Credit, open_socket

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.slices import Slices
    from netserver.http.query import Filter
    from netserver.http.sender import Sender
    from netserver.shell.counters import Counters


class Live:
    """What one page follows.

    Args:
        href: address of a record's page.
        sender: keeps the reader to a rate.
        may: whether the reader has the right to go on.
        slices: in which a turn of the event loop reads of many partitions.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        wanted: Filter,
        counters: Counters,
        href: Callable[[int, int], str],
        sender: Sender,
        may: Callable[[], bool],
        slices: Slices,
    ) -> None:
        self._next = {partition: partition.committed_seq + 1 for partition in partitions}
        self._wanted = wanted
        self._counters = counters
        self._href = href
        self._sender = sender
        self._may = may
        self._slices = slices
        self._told_s = time.monotonic()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Until the page goes."""
        socket = await open_socket(request)
        credit = Credit(1)
        listening = asyncio.create_task(_listen(socket, credit))
        try:
            with suppress(ConnectionError, EngineError):  # it may be deleted, or the right be taken away
                while await credit.wait():
                    message = await self._message()
                    if message is not None:
                        credit.left -= 1
                        await socket.send_str(json.dumps(message))
                    await asyncio.sleep(CONSOLE_LIVE_S)
            await socket.close()
        finally:
            listening.cancel()
        return socket

    async def _message(self) -> dict[str, Any] | None:
        """What came since the last one; None: nothing."""
        if not self._may():
            raise Forbidden("the right to read was taken away")
        starts, count = [], 0
        for partition, first in self._next.items():
            end = partition.committed_seq + 1
            if end > first:
                count += partition.gaps.count(first, end - 1).most
                least = partition.gaps.newest(partition.log_start, end - 1, CONSOLE_LIVE_RECORDS)
                starts.append((partition, max(first, least, partition.log_start), end, 0))
                self._next[partition] = end
        if not starts:
            return None
        search = Search(
            starts,
            self._wanted,
            CONSOLE_LIVE_RECORDS,
            newest=True,
            sender=self._sender,
            may=self._may,
            slices=self._slices,
        )
        found = await search.run(self._counters)
        now = time.monotonic()
        passed_s, self._told_s = max(now - self._told_s, CONSOLE_LIVE_S), now
        return {
            "rows": [self._row(row) for row in found.rows],
            "new": count_text(count),
            "passed": count_text(max(count - found.scanned, 0)),
            "rate": count_text(round(count / passed_s)),
        }

    def _row(self, row: Row) -> dict[str, Any]:
        return {
            "partition": str(row.partition),
            "offset": str(row.offset),
            "time": time_text(row.timestamp_ms),
            "key": name_text(row.key),
            "value": NULL if row.is_null else text_of(row.value),
            "size": size_text(row.size_bytes),
            "cut": row.is_cut,
            "href": self._href(row.partition, row.offset),
        }


async def _listen(socket: web.WebSocketResponse, credit: Credit) -> None:
    """Any text means: that was shown."""
    try:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            credit.left = 0
            credit.add(1)
    finally:
        credit.close()

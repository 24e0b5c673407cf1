"""``/v1/topics/NAME/records``: publishing and reading in any amount, each request in a few kilobytes of memory.

Bodies and answers flow: a publish is appended while it comes, what is read is sent as fast as the reader takes it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web
from multidict import MultiDict, MultiMapping

from engine.errors import EngineError, InvalidConfig, UnknownPartition
from engine.partitions.extent import Extent
from engine.positions import EARLIEST, LATEST
from netserver.admin.slices import sliced
from netserver.client.partitioning import partition_of
from netserver.http.bodies import LINES, Busy, Chunks, Hold, Lines, Room, append_lengths, append_values
from netserver.http.choosing import Line, Progress, line_of_item, until_s, wanted
from netserver.http.dispatch import frame_lengths, frame_lines
from netserver.http.errors import BadRequest
from netserver.http.json_lines import Rows
from netserver.http.large import is_large, pieces_of
from netserver.http.limits import (
    HTTP_DOCUMENT_BYTES_MAX,
    HTTP_ITEMS_DEFAULT,
    HTTP_ITEMS_MAX,
    HTTP_PARTITIONS_MAX,
    HTTP_VALUE_WHOLE_BYTES,
    HTTP_WRITE_BYTES,
)
from netserver.http.publishing import Publishing
from netserver.http.query import Publish, Read, parsed, query_of
from netserver.http.reading import Allowed, Buffer, Frame, Reader, Remark, remark_about
from netserver.http.sender import Sender
from netserver.http.socket import send_frames, send_items, serve_socket
from netserver.http.splitting import JSONL, LENGTH, LENGTHS, NONE, Splitter, check_size
from netserver.http.taking_turns import TakingTurns

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.topic_entries import Topic
    from netserver.admin.api import Api
    from netserver.admin.served import Served


class Groups(Protocol):
    """Who knows the positions of groups (`netserver.admin.groups`)."""

    async def starts(self, name: bytes, query: MultiMapping[str], index: int | None) -> list[tuple[Partition, int]]:
        """Where the readers of a group go on."""


RAW: Final = "application/octet-stream"


def streams_in(request: web.BaseRequest) -> bool:
    """Whether a request's body is taken while it comes, as its type or ``split`` says; one JSON document is not."""
    return request.method == "POST" and ("split" in query_of(request) or request.content_type in LINES)


class RecordsApi:
    """The operations; errors of the engine pass through."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api
        self._counters = server.http
        self._next_partition = itertools.count()
        self.room = Room()
        self._reading = TakingTurns(server.log.slices)

    # --- publishing

    async def publish(self, request: web.BaseRequest, name: bytes, sender: Sender, may: Callable[[], bool]) -> bytes:
        """Append a body's records; the document that says what is stored.

        Args:
            sender: keeps the request to its rate.
            may: whether the sender has the right to go on.

        Raises:
            BadRequest, EngineError: a note says how many records are stored all the same.
        """
        query = request.rel_url.raw_query_string
        split = JSONL if "split" not in parsed(query) and request.content_type in LINES else NONE
        asked = Publish.of(query, split)
        topic = self._api.found_or_made(name)
        publishing = Publishing(self._server.shell.pressure, sender, may)
        try:
            await self._append(request, asked, topic, publishing)
            await publishing.finish()
        except (BadRequest, Busy, EngineError) as error:
            with suppress(EngineError):  # the first error is the one that is told
                await publishing.finish()
            if publishing.records:
                error.add_note(f"{publishing.records} records of this request are stored")
            raise
        finally:
            publishing.close()
            self._counters.records_published += publishing.records
            self._counters.published_bytes += publishing.size_bytes
        return publishing.document()

    async def _append(
        self,
        request: web.BaseRequest,
        asked: Publish,
        topic: Topic,
        publishing: Publishing,
    ) -> None:
        usual = await self._api.opened(topic, self._partition_of(asked, topic))
        if asked.split == NONE and request.content.is_eof():  # the record has come as a whole
            value = request.content.read_nowait()
            check_size(len(value), topic.config.record_bytes_max)
            if asked.key or len(value) > HTTP_VALUE_WHOLE_BYTES:
                await publishing.append(usual, Rows([value], [asked.key] if asked.key else None))
            else:
                await publishing.put(usual, value)
            return
        with self.room.share() as hold:
            await self._append_pieces(request.content.iter_any(), asked, topic, usual, publishing, hold)

    async def _append_pieces(
        self, chunks: Chunks, asked: Publish, topic: Topic, usual: Partition, publishing: Publishing, hold: Hold
    ) -> None:
        if asked.split == JSONL:
            lines = Lines(
                usual,
                named=asked.partition is not None,
                opened=lambda index: self._api.opened(topic, index),
                now_ms=self._server.log.now_ms,
                slices=self._server.log.slices,
                publishing=publishing,
            )
            await lines.append(chunks, hold)
        elif asked.split == LENGTHS and not asked.key:
            await append_lengths(chunks, usual, self._server.log.slices, publishing, hold)
        else:
            splitter = Splitter(asked.split, topic.config.record_bytes_max)
            await append_values(chunks, splitter, usual, asked.key, publishing, hold)

    def _partition_of(self, asked: Publish, topic: Topic) -> int:
        """Where a record goes that says nothing of its own: by the request's key, else by turns over the requests."""
        if asked.partition is not None:
            return asked.partition
        if asked.key:
            return partition_of(asked.key, topic.partition_count)
        return next(self._next_partition) % topic.partition_count

    # --- reading

    async def read(
        self, request: web.BaseRequest, name: bytes, sender: Sender, may: Callable[[], bool]
    ) -> web.StreamResponse:
        """What a request asks for: one JSON document, lines, raw bytes, or a WebSocket.

        Args:
            sender: keeps the answer to its rate.
            may: whether the reader has the right to go on.
        """
        asked = Read.of(query_of(request), request.headers.get("Accept", ""))
        starts = await self.starts(self._api.find(name), asked)
        remark = remark_about(asked.start, [start[0] for start in starts]) if asked.start is not None else None
        return await self._answer(request, asked, starts, sender, may, remark)

    async def read_group(
        self, request: web.BaseRequest, name: bytes, groups: Groups, sender: Sender, may: Callable[[], bool]
    ) -> web.StreamResponse:
        """The same from the positions of a group, which reading does not change."""
        asked_for = query_of(request)
        query = MultiDict(asked_for)
        for which in ("protocol", "topic"):
            query.popall(which, None)
        asked = Read.of(query, request.headers.get("Accept", ""))
        if asked.start is not None:
            raise BadRequest("a group is read from its position, which a reset sets")
        starts = []
        for partition, first in await groups.starts(name, asked_for, asked.partition):
            is_endless = asked.follow and asked.end is None
            end = None if is_endless else (asked.end or LATEST).resolve(Extent(partition))
            starts.append((partition, first, end, 0))
        return await self._answer(request, asked, starts, sender, may)

    async def _answer(
        self,
        request: web.BaseRequest,
        asked: Read,
        starts: Sequence[tuple[Partition, int, int | None, int]],
        sender: Sender,
        may: Callable[[], bool],
        remark: Remark | None = None,
    ) -> web.StreamResponse:
        reader = Reader(starts, sender, may, self._server.log.slices, self._counters, remark, self._reading)
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                if len(starts) == 1 and asked.is_plain and asked.limit is None:
                    frames = partial(reader.frames, lines_of(starts[0][0].index), until_s=until_s(asked))
                    return await serve_socket(request, asked.credit, partial(send_frames, frames))
                return await serve_socket(request, asked.credit, partial(send_items, wanted(reader, asked)))
            if asked.form == "json":
                return await _document(request, reader, asked)
            response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
            response.content_type = RAW if asked.form == "raw" else LINES[0]
            await response.prepare(request)
            try:
                if len(starts) == 1 and asked.is_plain:
                    await _write_framed(response, reader, asked, starts[0][0].index)
                else:
                    await _write(response, reader, asked)
            except EngineError as error:
                await _break_off(request, response, asked, error)
            return response
        finally:
            reader.close()

    async def starts(self, topic: Topic, asked: Read) -> list[tuple[Partition, int, int | None, int]]:
        """What a `Reader` of the request begins with. Raises EngineError."""
        indexes: Sequence[int] = range(topic.partition_count) if asked.partition is None else [asked.partition]
        if asked.partition is not None and asked.partition >= topic.partition_count:
            raise UnknownPartition(f"the topic has {topic.partition_count} partitions, the first one is 0")
        if len(indexes) > HTTP_PARTITIONS_MAX:
            raise InvalidConfig(f"more than {HTTP_PARTITIONS_MAX} partitions: name one by partition=N")
        start = asked.start or (LATEST if asked.follow else EARLIEST)
        found = []
        async for index in sliced(self._server.log.slices, indexes):
            partition = await self._api.opened(topic, index)
            extent = Extent(partition)
            first = start.resolve(extent)
            end = None if asked.follow and asked.end is None else (asked.end or LATEST).resolve(extent)
            found.append((partition, first, end, start.value if start.kind == "time" else 0))
        return found


async def _break_off(request: web.BaseRequest, response: web.StreamResponse, asked: Read, error: EngineError) -> None:
    """Reading has failed in the middle of an answer: a line says why, and the answer is cut off."""
    if asked.form != "raw":
        await response.write(json.dumps({"error": str(error)}).encode() + b"\n")
    if request.transport is not None:
        request.transport.close()


async def _document(request: web.BaseRequest, reader: Reader, asked: Read) -> web.StreamResponse:
    limit = min(asked.limit or HTTP_ITEMS_DEFAULT, HTTP_ITEMS_MAX)
    most = min(asked.size_bytes_max or HTTP_DOCUMENT_BYTES_MAX, HTTP_DOCUMENT_BYTES_MAX)
    bounded = replace(asked, limit=limit, size_bytes_max=most)
    pieces = [b'{"schema":1,"items":[']
    async for item in wanted(reader, bounded):
        if item is None:
            continue
        if len(pieces) > 1:
            pieces[-1] = pieces[-1][:-1] + b",\n"
        if is_large(item):
            pieces += [piece async for piece in pieces_of(item)]
        else:
            pieces.append(line_of_item(item))
    if len(pieces) > 1:
        pieces[-1] = pieces[-1][:-1]
    pieces.append(b"]}\n")
    if sum(map(len, pieces)) <= HTTP_VALUE_WHOLE_BYTES:
        return web.Response(body=b"".join(pieces), content_type="application/json")
    response = web.StreamResponse()
    response.content_type = "application/json"
    await response.prepare(request)
    for some in _batched(pieces):
        await response.write(some)
        await asyncio.sleep(0)
    return response


def _batched(pieces: list[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about `HTTP_WRITE_BYTES`."""
    out = bytearray()
    for piece in pieces:
        out += piece
        if len(out) >= HTTP_WRITE_BYTES:
            yield bytes(out)
            out.clear()
    yield bytes(out)


def lines_of(partition: int) -> Frame:
    """Records of a partition as lines of JSON."""

    def lines(
        batches: Buffer, from_seq: int, last_seq: int, bytes_max: int, records_max: int
    ) -> tuple[Buffer, int, int]:
        return frame_lines(batches, from_seq, last_seq, partition, bytes_max, records_max)

    return lines


async def _write_framed(response: web.StreamResponse, reader: Reader, asked: Read, partition: int) -> None:
    """One partition, as it is: by the hot loops as far as they can."""
    is_raw = asked.form == "raw"
    shown = _raw if is_raw else line_of_item

    allowed = Allowed(sys.maxsize if asked.limit is None else asked.limit)
    async for framed in reader.frames(frame_lengths if is_raw else lines_of(partition), allowed, until_s(asked)):
        if not isinstance(framed, list):
            await response.write(framed)
        elif any(map(is_large, framed)):
            for item in framed:
                await _write_item(response, item, shown, raw=is_raw)
        elif framed or (asked.follow and not is_raw):
            await response.write(b"".join(map(shown, framed)) or b"\n")


async def _write_item(response: web.StreamResponse, item: Line, shown: Callable[[Line], bytes], *, raw: bool) -> None:
    if is_large(item):
        async for piece in pieces_of(item, raw=raw):
            await response.write(piece)
    elif content := shown(item):
        await response.write(content)


async def _write(response: web.StreamResponse, reader: Reader, asked: Read) -> None:
    is_raw = asked.form == "raw"
    shown = _raw if is_raw else line_of_item
    out = bytearray()
    async for item in wanted(reader, asked):
        if is_large(item):
            await response.write(bytes(out))
            out.clear()
            await _write_item(response, item, shown, raw=is_raw)
        elif item is not None:
            out += shown(item)
            if len(out) < HTTP_WRITE_BYTES and not isinstance(item, Progress):
                continue
        elif asked.follow and not is_raw:
            out += b"\n"  # whoever follows has all that there is now
        if out:
            await response.write(bytes(out))
            out.clear()
    if out:
        await response.write(bytes(out))


def _raw(item: Line) -> bytes:
    if not isinstance(item, tuple):
        return b""
    value = item[1].value
    return LENGTH.pack(len(value)) + value

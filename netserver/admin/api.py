"""The admin API without HTTP: documents in, documents out. Shapes: ``netserver.admin.server``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from engine.config import spelled_settings
from engine.errors import DiskFull, EngineError, UnknownTopic
from engine.limits import KEY_BYTES_MAX
from engine.partitions.partition import Partition
from engine.segments.batches import COMMITTED, PENDING, WriteBatch, check_records, outcome
from engine.segments.watermarks import Owner
from engine.sessions.store import Sessions
from engine.sessions.types import UnknownSession
from engine.state.topic_entries import Topic
from netserver import remote
from netserver.admin.globs import matcher
from netserver.admin.slices import Encoded, sliced, turn
from netserver.admin.stored_sizes import Key, look
from netserver.http.errors import BadRequest
from netserver.http.json_lines import Row, gather
from netserver.http.limits import HTTP_BASE64_PIECE_CHARS, HTTP_RECORDS_PIECE, HTTP_VALUE_WHOLE_BYTES
from netserver.http.publishing import make_room
from netserver.limits import ADMIN_PUBLISHES
from netserver.reliably.describe import session_item
from netserver.version import product_version

if TYPE_CHECKING:
    from engine.slices import Slices
    from netserver.admin.served import Served
    from netserver.shell.connection import Connection

T = TypeVar("T")
Document = dict[str, Any]
Sizes = Mapping[Key, tuple[int, int]]
NO_SIZES: Sizes = {}
RECORD_FIELDS: Final = frozenset(("value", "value_base64", "key", "key_base64", "timestamp_ms", "headers"))
"""Of a record in a document that is published whole; a line may have more."""


class NotFound(Exception):
    """Nothing of that name."""


class Conflict(Exception):
    """Not in the present state of things; the text says what has to come first."""


class _Publish:
    """Waits for the write batches of one publish (a ``Waiter`` of the engine)."""

    def __init__(self) -> None:
        self.write_batches: list[WriteBatch] = []
        self.done = asyncio.Event()

    def round_done(self) -> None:
        if self.write_batches and outcome(self.write_batches)[0] != PENDING:
            self.done.set()


class Api:
    """The operations; errors of the engine pass through."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._publishes = asyncio.Semaphore(ADMIN_PUBLISHES)

    def not_ready_reason(self) -> str:
        """Why the server does not serve now; empty: it does."""
        if not self._server.ready:
            return "starting or stopping"
        if (problem := self._server.log.state.error) is not None:
            return str(problem)
        read_only = self._server.log.error
        return f"it takes no records: {read_only}" if read_only is not None else ""

    def ready_text(self) -> str:
        """What a server that is ready says of itself: it is, also when some partitions cannot be opened."""
        unopened = self._server.log.parts.unopened
        if not unopened:
            return "ready"
        name, problem = next(iter(unopened.items()))
        return f"ready, but {len(unopened)} of its partitions cannot be opened; {name}: {problem}"

    async def status(self) -> Document:
        """The server at a glance."""
        server, engine = self._server, self._server.log
        disk = os.statvfs(server.data_dir)
        return {
            "schema": 1,
            "version": product_version(),
            "pid": os.getpid(),
            "ready": not self.not_ready_reason(),
            "started": server.started_at,
            "restart_needed": server.restart_needed,
            "uptime_seconds": time.monotonic() - server.started_s,
            "data_dir": str(server.data_dir.absolute()),
            "listeners": {name: str(address) for name, address in server.addresses.items()},
            "tls": server.tls_listeners,
            "failed_listeners": {name: str(error) for name, error in server.failed.items()},
            "connections": {name: counters.connections for name, counters in server.counters.items()},
            "connections_max": server.gate.connections_max,
            "topics": len(engine.catalog),
            "partitions": engine.catalog.partition_total,
            "pending_bytes": engine.pending_bytes,
            "records_published": sum(one.records_published for one in (*server.counters.values(), server.http)),
            "disk_free_bytes": disk.f_bavail * disk.f_frsize,
            "disk_size_bytes": disk.f_blocks * disk.f_frsize,
            "remote": remote.document(engine, server.config.remote.url),
        }

    async def reload(self) -> Document:
        """Have the process read its configuration again; ``/metrics`` tell when it did, and whether that was valid."""
        if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, signal.SIG_IGN):
            raise Conflict("the program that this server is a part of does not read a configuration again")
        os.kill(os.getpid(), signal.SIGHUP)
        return {"reloading": True}

    # --- topics

    async def topics(self, glob: str | None) -> Document:
        """All topics, or those whose name matches."""
        matches, log = matcher(glob), self._server.log
        found: dict[bytes, Topic] = {}
        async for topic in sliced(log.slices, log.catalog):
            if matches(topic.name.decode("utf-8", "surrogateescape")):
                found[topic.name] = topic
        sizes = await self.closed_sizes((topic, index) for topic in found.values() for index in tuple(topic.numbers))
        names = await asyncio.to_thread(sorted, found)
        items = [
            Encoded(json.dumps(await self._describe(found[name], sizes))) async for name in sliced(log.slices, names)
        ]
        return {"schema": 1, "items": items}

    async def closed_sizes(self, partitions: Iterable[tuple[Topic, int]]) -> Sizes:
        """Segments and bytes of those that nobody uses, from their directories."""
        log, root = self._server.log, self._server.data_dir / "topics"
        closed: dict[Key, Path] = {}
        async for topic, index in sliced(log.slices, partitions):
            used = log.used_partition(topic, index)
            if used is None or not used.is_open:
                closed[topic.id, index] = root / str(topic.id) / str(index)
        return await asyncio.to_thread(look, closed) if closed else {}

    async def topic(self, name: bytes) -> Document:
        """One topic, with its partitions opened so that their positions are known."""
        topic = self.find(name)
        for index in topic.numbers:
            await self.opened(topic, index)
        return await self._describe(topic)

    async def create_topic(self, body: Document) -> Document:
        """A new topic."""
        name = bytes_field(body, "name")
        if not name:
            raise BadRequest("name is missing")
        partitions = int_field(body, "partitions", 1)
        settings = _settings(body)
        topic = await self.durable(
            lambda done: self._server.log.catalog.create(
                name, partition_count=partitions, settings=settings, on_durable=done
            )
        )
        return await self._describe(topic)

    async def configure_topic(self, name: bytes, body: Document) -> Document:
        """Other settings for a topic."""
        topic, changes = self.find(name), _settings(body)
        await self.durable(lambda done: self._server.log.catalog.configure(topic, changes, done))
        return await self._describe(topic)

    async def delete_topic(self, name: bytes) -> Document:
        """Delete a topic; a new one of its name starts again."""
        topic = self.find(name)
        await self.durable(lambda done: self._server.log.catalog.delete(topic, done))
        return {"deleted": _text(topic.name, "name")}

    async def trim(self, name: bytes, body: Document) -> Document:
        """Raise the start of a partition's log; whole segments before it go away after the grace time."""
        before = int_field(body, "before")
        partition = await self.opened(self.find(name), int_field(body, "partition", 0))
        segments = partition.trim(before)
        return {"partition": partition.index, "first_offset": partition.log_start, "segments_removed": segments}

    # --- records

    async def publish(self, name: bytes, body: Document) -> Document:
        """Append records to one partition and wait until they are stored; tells their offsets.

        ``{"qos0": true}`` marks them as BlipMQ's QoS 0.
        """
        records = body.get("records")
        if not isinstance(records, list) or not records:
            raise BadRequest('records must be a list of objects, at least one: {"records": [{"value": "text"}]}')
        log, count = self._server.log, len(records)
        rows = await _rows(records, log.now_ms(), log.slices)
        size_bytes = sum(len(row.value) for row in rows)
        is_small = count <= HTTP_RECORDS_PIECE and size_bytes <= HTTP_VALUE_WHOLE_BYTES
        async with self._publishes:
            partition = await self.opened_or_made(name, int_field(body, "partition", 0))
            append = self._append if is_small or count == 1 else self._append_many
            last = await append(partition, rows, qos0=body.get("qos0") is True)
        self._server.http.records_published += count
        self._server.http.published_bytes += size_bytes
        return {"partition": partition.index, "first_offset": last - count + 1, "last_offset": last}

    async def _append(self, partition: Partition, rows: list[Row], *, qos0: bool) -> int:
        """In one piece; the last offset."""
        gathered = gather(rows)
        await make_room(partition, gathered)
        waiter = _Publish()
        waiter.write_batches = partition.append_many(
            gathered.values,
            keys=gathered.keys,
            timestamps_ms=gathered.timestamps_ms,
            headers=gathered.headers,
            qos0=qos0,
            waiter=waiter,
        )
        last = partition.last_seq
        waiter.round_done()
        await waiter.done.wait()
        state, error = outcome(waiter.write_batches)
        if state != COMMITTED:
            raise error or EngineError("not stored")
        return last

    async def _append_many(self, partition: Partition, rows: list[Row], *, qos0: bool) -> int:
        """The same of records of which there are too many for one turn of the loop: all of them, or none."""
        slices = self._server.log.slices
        transaction = self._server.log.transaction(qos0=qos0)
        rows.reverse()
        while rows:
            row = rows.pop()
            if row.headers:
                check_records(partition.config, [row.value], None, [row.headers])
            transaction.append(partition, row.value, key=row.key, headers=row.headers, timestamp_ms=row.timestamp_ms)
            await turn(slices)
        await self.durable(transaction.commit)
        return transaction.write_batches[-1].last_seq

    # --- connections

    async def connections(self) -> Document:
        """Open TCP connections, oldest first."""
        items, _ = await self.connections_page("", 0, sys.maxsize)
        return {"schema": 1, "items": items}

    async def connections_page(self, text: str, first: int, rows: int) -> tuple[list[Document], int]:
        """Some of the connections whose peer or protocol holds a text, and how many these are."""
        oldest = sorted(self._server.shell.connections, key=lambda connection: connection.number)
        return await self._page(
            oldest, lambda one: text in one.peer or text in one.counters.name, _connection_item, first, rows
        )

    async def _page(
        self, all_: Iterable[T], wants: Callable[[T], object], item: Callable[[T], Document], first: int, rows: int
    ) -> tuple[list[Document], int]:
        items: list[Document] = []
        count = 0
        async for one in sliced(self._server.log.slices, all_):
            if wants(one):
                if first <= count < first + rows:
                    items.append(item(one))
                count += 1
        return items, count

    async def abort_connection(self, number: bytes) -> Document:
        """Abort one connection."""
        for connection in self._server.shell.connections:
            if str(connection.number).encode() == number:
                connection.abort("by the admin API", "admin")
                return {"closed": connection.number}
        raise NotFound("no such connection")

    # --- sessions

    async def sessions(self, glob: str | None) -> Document:
        """Sessions of the JSON streaming protocol, or those whose uuid matches."""
        items, _ = await self.sessions_page(matcher(glob), 0, sys.maxsize)
        return {"schema": 1, "items": items}

    async def sessions_page(
        self, matches: Callable[[str], object], first: int, rows: int
    ) -> tuple[list[Document], int]:
        """Some of the sessions whose uuid matches, and how many these are."""
        return await self._page(
            self._sessions or (),
            lambda info: matches(info.uuid),
            lambda info: session_item(info, self._topic_name),
            first,
            rows,
        )

    async def session(self, uuid: bytes) -> Document:
        """One session."""
        served = self._sessions
        if served is None:
            raise UnknownSession(uuid.decode("utf-8", "replace"))
        return session_item(served.info(uuid.decode("utf-8", "replace")), self._topic_name)

    async def drop_session(self, uuid: bytes) -> Document:
        """Remove a session; its connection ends."""
        name, served = uuid.decode("utf-8", "replace"), self._sessions
        if served is None:
            raise UnknownSession(name)
        await self.durable(lambda done: served.drop(name, done))
        return {"dropped": name}

    @property
    def _sessions(self) -> Sessions[Any, Any] | None:
        services = self._server.services.get("reliably")
        return services.sessions if services is not None else None

    def _topic_name(self, topic_id: int) -> bytes | None:
        topic = self._server.log.catalog.by_id(topic_id)
        return topic.name if topic is not None else None

    # --- inside

    def find(self, name: bytes) -> Topic:
        """A topic. Raises UnknownTopic."""
        topic = self._server.log.catalog.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name.decode('utf-8', 'backslashreplace')!r}")
        return topic

    async def opened(self, topic: Topic, index: int) -> Partition:
        """A partition, ready for use. Raises EngineError."""
        partition = self._server.log.partition(topic, index)
        if not partition.is_open:
            opened = asyncio.Event()
            partition.when_open(opened.set)
            await opened.wait()
            if not partition.is_open:
                raise partition.error or EngineError("the partition cannot be opened")
        return partition

    async def opened_or_made(self, name: bytes, index: int) -> Partition:
        """The same; the topic is made when there is none and its first partition is asked for."""
        return await self.opened(self.find(name) if index else self.found_or_made(name), index)

    def found_or_made(self, name: bytes) -> Topic:
        """The topic that is published to. Raises BadRequest: there is none, and none without a name is made."""
        catalog = self._server.log.catalog
        if not name and catalog.get(name) is None:
            raise BadRequest("a topic needs a name")
        return catalog.get_or_create(name)

    @staticmethod
    async def durable(change: Callable[[Callable[[Exception | None], None]], Any]) -> Any:
        """Run a change and wait until it is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        result = change(done)
        await future
        return result

    def _stored(self, topic: Topic, index: int, sizes: Sizes) -> Document:
        """What the files say of a partition that nobody has used since the start."""
        try:
            mark = self._server.log.watermarks.read(Owner(topic.numbers[index], topic.id, index))
        except OSError:
            return {}
        entry: Document = {}
        if mark is not None:
            entry |= {"first_offset": mark.log_start, "next_offset": mark.committed_seq + 1}
        if (topic.id, index) in sizes:
            entry["size_bytes"] = sizes[topic.id, index][1]
        return entry

    def partition_item(self, topic: Topic, index: int, sizes: Sizes = NO_SIZES) -> Document:
        """One partition, as it is: one that nobody uses is not opened for it."""
        partition = self._server.log.used_partition(topic, index)
        entry: Document = {"partition": index, "open": partition is not None and partition.is_open}
        if partition is None:
            return entry | self._stored(topic, index, sizes)
        if partition.is_open:
            entry |= {
                "first_offset": partition.log_start,
                "next_offset": partition.committed_seq + 1,
                "records": partition.gaps.count(partition.log_start, partition.committed_seq).most,
                "size_bytes": partition.committed_end + sum(segment.size_bytes for segment in partition.sealed),
            }
        else:
            entry |= self._stored(topic, index, sizes)
        if partition.error is not None:
            entry["error"] = str(partition.error)
        elif partition.failing is not None:
            entry["error"] = str(partition.failing)
            entry["no_space"] = isinstance(partition.failing, DiskFull)
        return entry

    async def _describe(self, topic: Topic, sizes: Sizes = NO_SIZES) -> Document:
        numbers = sorted(topic.numbers)
        partitions = [
            self.partition_item(topic, index, sizes) async for index in sliced(self._server.log.slices, numbers)
        ]
        return {
            **_text(topic.name, "name"),
            "id": topic.id,
            "created_ms": topic.created_ms,
            "partitions": topic.partition_count,
            "settings": spelled_settings(topic.settings),
            "config": spelled_settings(topic.config.to_mapping()),
            "partition_details": partitions,
        }


def _connection_item(connection: Connection) -> Document:
    return {
        "number": connection.number,
        "protocol": connection.counters.name,
        "peer": connection.peer,
        "opened": connection.opened_at,
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "pending_bytes": connection.charged,
        "receive_bytes": connection.retained + connection.reserved,
        "held": connection.hold_reasons,
    }


def _text(value: bytes, name: str) -> Document:
    """``name`` with text, or ``name_base64``."""
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def bytes_field(document: Mapping[str, Any], name: str) -> bytes | None:
    """The bytes of ``name`` (text) or ``name_base64``; None when neither is there."""
    text, encoded = document.get(name), document.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise BadRequest(f"{name} and {name}_base64 exclude each other")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadRequest(f"{name}_base64 is not base64") from None
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadRequest(f"{name} must be a text")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{name} has a lone surrogate; send {name}_base64") from None


async def _rows(records: list[Any], now_ms: int, slices: Slices) -> list[Row]:
    """The records of a document, which are taken out of it as they are read: it may have 50,000. Raises BadRequest."""
    rows: list[Row] = []
    records.reverse()
    while records:
        record = records.pop()
        rows.append(_row(record, now_ms, await _large_value(record, slices)))
        await turn(slices)
    return rows


async def _large_value(record: Any, slices: Slices) -> bytes | None:
    """A value whose base64 would take one turn too long: 100 ms for 20 MB; None: it is none such. Raises BadRequest."""
    encoded = record.get("value_base64") if isinstance(record, dict) and "value" not in record else None
    if not isinstance(encoded, str) or len(encoded) <= HTTP_VALUE_WHOLE_BYTES:
        return None
    pieces: list[bytes] = []
    for at in range(0, len(encoded), HTTP_BASE64_PIECE_CHARS):
        piece = encoded[at : at + HTTP_BASE64_PIECE_CHARS]
        if "=" in piece and at + len(piece) < len(encoded):  # the end of what is encoded, and there is more
            raise BadRequest("value_base64 is not base64")
        pieces.append(_required({"value_base64": piece}, "value"))
        await turn(slices)
    return b"".join(pieces)


def _row(record: Any, now_ms: int, large_value: bytes | None) -> Row:
    if not isinstance(record, dict):
        raise BadRequest("records must be a list of objects, at least one")
    if unknown := record.keys() - RECORD_FIELDS:
        raise BadRequest(f"no field {min(unknown)!r} of a record; there are {', '.join(sorted(RECORD_FIELDS))}")
    value = _required(record, "value") if large_value is None else large_value
    key = bytes_field(record, "key") or b""
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"a key may have {KEY_BYTES_MAX} bytes")
    return Row(value, key, int_field(record, "timestamp_ms", now_ms), _headers(record), -1)


def _required(document: Mapping[str, Any], name: str) -> bytes:
    found = bytes_field(document, name)
    if found is None:
        raise BadRequest(f"{name} (or {name}_base64) is missing")
    return found


def int_field(document: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The number of ``name``. Raises BadRequest."""
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise BadRequest(f"{name} must be a number, 0 or more")
    return value


def _settings(document: Mapping[str, Any]) -> dict[str, str]:
    config = document.get("config", {})
    if not isinstance(config, dict) or not all(isinstance(value, str | int | bool) for value in config.values()):
        raise BadRequest("config must be an object of settings and their values")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}


def _headers(record: Mapping[str, Any]) -> tuple[bytes, ...]:
    """``headers``: a list of {"name", "value"}; as the flat list that a record holds."""
    headers = record.get("headers", [])
    if not isinstance(headers, list) or not all(isinstance(header, dict) for header in headers):
        raise BadRequest("headers must be a list of objects with name and value")
    return tuple(_required(header, part) for header in headers for part in ("name", "value"))

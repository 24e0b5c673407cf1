"""The admin API's part about who reads what: durable subscriptions, identities. Shapes: ``netserver.admin.server``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cursors import documents as subscriptions
from engine.cursors.cursor import Cursor
from engine.cursors.dead_letters import dead_letter_topic
from engine.cursors.documents import REDRIVE_OWNER, Redrive, UnknownSubscription
from engine.cursors.stored_cursors import Entry
from engine.errors import Corrupt, EngineError
from engine.reports import report
from netserver.access.key_file import FIELDS, add_identity, key_item, read_key_file, revoke_key, rotate_key
from netserver.access.rights import EVERYTHING, Right
from netserver.admin.api import Api, bytes_field, int_field
from netserver.admin.globs import matcher
from netserver.admin.lags import lag_of
from netserver.admin.slices import sliced
from netserver.http.errors import BadRequest

if TYPE_CHECKING:
    from netserver.admin.served import Served

Document = dict[str, Any]
Route = Callable[[], Awaitable[Document]]


class SubscriptionsApi:
    """The operations on subscriptions; errors of the engine pass through."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api
        self._redrives: dict[int, asyncio.Future[tuple[int, EngineError | None]]] = {}

    async def list(self, glob: str | None) -> Document:
        """All subscriptions, or those of topics whose name matches."""
        matches = matcher(glob)
        items = []
        async for entry in sliced(self._server.log.slices, self._server.log.cursors.entries()):
            topic = self._server.log.catalog.by_id(entry.topic_id)
            name = topic.name.decode("utf-8", "surrogateescape") if topic is not None else ""
            if entry.owner != REDRIVE_OWNER and matches(name):
                try:
                    items.append(await self.item(entry))
                except Corrupt as problem:
                    report(str(problem))
        return {"schema": 1, "items": items}

    async def show(self, number: bytes) -> Document:
        """One subscription; its partition is opened, so that its lag is known."""
        cursor = self._find(number)
        partition = await self._api.opened(cursor.partition.topic, cursor.partition.index)
        log = {"first_offset": partition.log_start, "next_offset": partition.committed_seq + 1}
        return await self.item(cursor.entry()) | {"log": log}

    async def pending(self, number: bytes) -> Document:
        """What a subscription has delivered and nobody acknowledged."""
        now_ms = self._server.log.cursors.clock_ms()
        return {"schema": 1, "items": subscriptions.pending_now(self._find(number), now_ms)}

    async def reset(self, number: bytes, body: Document) -> Document:
        """Go on somewhere else."""
        cursor, next_seq = self._find(number), int_field(body, "next_offset")
        partition = await self._api.opened(cursor.partition.topic, cursor.partition.index)
        if not partition.log_start <= next_seq <= partition.committed_seq + 1:
            raise BadRequest(f"next_offset must lie in {partition.log_start} to {partition.committed_seq + 1}")
        cursors = self._server.log.cursors
        await self._api.durable(lambda done: subscriptions.reset(cursors, cursor, next_seq, done))
        return await self.item(cursor.entry())

    async def pause(self, number: bytes, *, is_paused: bool) -> Document:
        """Have a subscription deliver nothing, or go on."""
        cursor = self._find(number)
        await self._api.durable(lambda done: self._server.log.cursors.pause(cursor, is_paused, done))
        return await self.item(cursor.entry())

    async def redrive(self, number: bytes, body: Document) -> Document:
        """Append dead letters to a topic once more."""
        cursor = self._find(number)
        log = self._server.log
        source = bytes_field(body, "from")
        if source is None:
            suffix = log.cursors.policy(cursor.owner).dead_letter_suffix
            if not suffix:
                raise BadRequest("from is missing: no dead_letter_suffix is configured")
            source = dead_letter_topic(cursor.topic_name, suffix)
        wanted = bytes_field(body, "to") or cursor.topic_name
        if wanted == source:
            raise BadRequest("from and to are the same topic")
        partition = await self._api.opened(self._api.find(source), 0)
        target = await self._api.opened(self._api.find(wanted), 0)
        limit = int_field(body, "limit", 2**62)
        while (running := self._redrives.get(cursor.id)) is not None:  # whoever asks again goes on where that one ends
            await asyncio.wait([running])
        finished: asyncio.Future[tuple[int, EngineError | None]] = asyncio.get_running_loop().create_future()

        def done(count: int, error: EngineError | None) -> None:
            del self._redrives[cursor.id]
            if not finished.done():
                finished.set_result((count, error))

        redrive = Redrive(log.cursors, cursor.id, partition, target, limit, done)
        self._redrives[cursor.id] = finished  # until its end, though nobody may wait for the answer any more
        redrive.work()
        count, error = await asyncio.shield(finished)
        if error is not None:
            raise error
        return {"redriven": count}

    async def delete(self, number: bytes) -> Document:
        """Remove a subscription."""
        cursor = self._find(number)
        await self._api.durable(lambda done: self._server.log.cursors.delete(cursor, done))
        return {"deleted": cursor.id}

    def _find(self, number: bytes) -> Cursor:
        text = number.decode("ascii", "replace")
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise UnknownSubscription(text)
        return subscriptions.find(self._server.log.cursors, int(text))

    async def item(self, entry: Entry) -> Document:
        """A subscription as it is now. Raises Corrupt."""
        topic = self._server.log.catalog.by_id(entry.topic_id)
        paused = self._server.log.cursors.is_paused(entry.id)
        item = subscriptions.entry_item(entry, topic.name if topic is not None else None, None, paused=paused)
        lag = await lag_of(self._server.log, entry.id)
        return item | {"lag": lag.records, "lag_seconds": lag.seconds, "lag_trend": lag.trend}


class NoKeyFile(Exception):
    """The server has no access file."""


class UnknownKey(Exception):
    """There is no identity of this name."""


class KeysApi:
    """The operations on the access file; they count at once, for open connections too."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._lock = asyncio.Lock()  # a change reads the file and replaces it

    async def list(self) -> Document:
        """The identities of the file, without what their keys are."""
        path = self._path()
        return {"schema": 1, "items": [key_item(key) for key in read_key_file(path)] if path.exists() else []}

    async def add(self, body: Document) -> Document:
        """Make an identity, and tell its key if it has one: nobody can look it up later."""
        path = self._path()
        if not isinstance(body.get("name"), str) or not body["name"]:
            raise BadRequest("name must be a text")
        fields = {"publish": list(EVERYTHING), "subscribe": list(EVERYTHING)} | body
        if unknown := fields.keys() - (FIELDS - {"salt", "hash", "previous", "created"}):
            raise BadRequest(f"no field {min(unknown)!r}")
        for name in ("publish", "subscribe", "create", "manage", "listeners", "certificates", "networks"):
            if not isinstance(fields.get(name, []), list):
                raise BadRequest(f"{name} must be a list of texts")
        async with self._lock:
            key = await asyncio.to_thread(add_identity, path, fields)
            await self._take_over()
        return {"name": body["name"]} | ({"key": key} if key else {})

    async def rotate(self, name: bytes, body: Document) -> Document:
        """Give an identity another key; the old one counts until the next rotation, with ``end_old`` no longer."""
        path, text = self._path(), name.decode("utf-8", "replace")
        keeps_old = body.get("end_old") is not True
        async with self._lock:
            try:
                key = await asyncio.to_thread(rotate_key, path, text, keeps_old=keeps_old)
            except KeyError:
                raise UnknownKey(f"no key {text!r} in {path}") from None
            await self._take_over()
        return {"name": text, "key": key}

    async def revoke(self, name: bytes) -> Document:
        """Take an identity back; its connections end."""
        path, text = self._path(), name.decode("utf-8", "replace")
        async with self._lock:
            if not await asyncio.to_thread(revoke_key, path, text):
                raise UnknownKey(f"no key {text!r} in {path}")
            await self._take_over()
        return {"revoked": text}

    async def test(self, name: bytes, body: Document) -> Document:
        """Whether an identity has a right to a topic."""
        text, topic = name.decode("utf-8", "replace"), bytes_field(body, "topic")
        identity = self._server.access.identities.names.get(text)
        if identity is None:
            raise UnknownKey(f"no key {text!r}")
        if topic is None or body.get("right") not in list(Right):
            raise BadRequest(f"topic must be a text, and right one of {', '.join(Right)}")
        return {"name": text, "allowed": identity.may(Right(body["right"]), topic)}

    async def _take_over(self) -> None:
        """What the file says counts from now on."""
        identities = self._server.access.identities
        identities.replace(await asyncio.to_thread(identities.read_again))

    def _path(self) -> Path:
        path = self._server.access.identities.path
        if path is None:
            raise NoKeyFile("the server has no access file: name one by file in [access] and reload it")
        return path

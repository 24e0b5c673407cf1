"""``/v1/groups``: durable positions by name, whichever protocol they are of, and those that HTTP consumers commit.

A group is a name in a topic: a Fujin group, a BlipMQ subscription (its id is its name), a reliably session of a topic
(its uuid), a group of Kafka's consumers, or one that was made here. What was made here moves when positions are
committed; the others move by what their own protocol acknowledges, and can be looked at, reset and deleted; those that
are cursors can be read from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from multidict import MultiDict, MultiMapping

from engine.cursors import documents as subscriptions
from engine.cursors.cursor import Cursor
from engine.cursors.deliveries import Plan
from engine.cursors.documents import CONSUMER_OWNER as OWNER
from engine.cursors.documents import REDRIVE_OWNER
from engine.cursors.groups import group_item
from engine.cursors.lags import Key, Standing
from engine.errors import Corrupt, LimitReached
from engine.partitions.extent import Extent
from engine.positions import EARLIEST, parse
from engine.reports import report
from netserver.admin.api import Api, Conflict, bytes_field, int_field
from netserver.admin.globs import matcher
from netserver.admin.kafka_groups import KafkaGroup, KafkaGroups
from netserver.admin.lags import lag_at
from netserver.admin.slices import Encoded, sliced
from netserver.http.errors import BadRequest
from netserver.http.limits import HTTP_GROUPS_POSITIONS_MAX, HTTP_PARTITIONS_MAX
from netserver.http.query import Parameters
from netserver.reliably.applications import RecordsState
from netserver.reliably.describe import session_group, session_standing

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.positions import Position
    from engine.sessions.types import SessionInfo
    from engine.state.store import OnDone
    from engine.state.topic_entries import Topic
    from netserver.admin.access import SubscriptionsApi
    from netserver.admin.served import Served

Document = dict[str, Any]
Route = Callable[[], Awaitable[Document]]
Session: TypeAlias = "SessionInfo[RecordsState]"
SESSIONS: Final = "reliably"
KAFKA: Final = "kafka"
_ONLY_OURS: Final = MultiDict({"protocol": OWNER})


class UnknownGroup(Exception):
    """There is no group of this name."""


class GroupsApi:
    """The operations on groups; errors of the engine pass through."""

    def __init__(self, server: Served, api: Api, positions: SubscriptionsApi) -> None:
        self._server = server
        self._api = api
        self._positions = positions
        self._kafka = KafkaGroups(server, api)
        server.log.cursors.lags.others = self._standings

    # --- looking

    async def list_groups(self, query: MultiMapping[str]) -> Document:
        """All groups, or those whose name and topic match, of one protocol."""
        parameters = Parameters(query)
        name, topic = matcher(parameters.text("name")), matcher(parameters.text("topic"))
        protocol = parameters.text("protocol")
        parameters.end()

        def is_meant(owner: str, group: bytes, topic_id: int) -> bool:
            if protocol not in (None, owner) or not name(_readable(group)):
                return False
            return bool(topic(_readable(self._topic_name(topic_id) or b"")))

        items = [Encoded(json.dumps(item)) async for item in self._items(await self._meant(is_meant))]
        return {"schema": 1, "items": items}

    async def groups_page(self, text: str, first: int, rows: int) -> tuple[list[Document], int]:
        """Some of the groups whose name or topic holds a text, and how many these are."""

        def is_meant(_owner: str, group: bytes, topic_id: int) -> bool:
            return text in _readable(group) or text in _readable(self._topic_name(topic_id) or b"")

        found = await self._meant(is_meant)
        return [item async for item in self._items(found[first : first + rows])], len(found)

    async def _meant(self, is_meant: Callable[[str, bytes, int], bool]) -> Sequence[list[int] | Session | KafkaGroup]:
        """Positions of the groups that are meant, then sessions, then Kafka's groups."""
        slices = self._server.log.slices
        found: dict[tuple[str, bytes, int], list[int]] = {}
        async for entry in sliced(slices, self._server.log.cursors.entries()):
            place = (entry.owner, entry.name or b"%d" % entry.id, entry.topic_id)
            if entry.owner != REDRIVE_OWNER and (place in found or is_meant(*place)):
                found.setdefault(place, []).append(entry.id)
        sessions = [
            info
            async for info in sliced(slices, self._sessions())
            if is_meant(SESSIONS, info.uuid.encode("utf-8", "surrogateescape"), info.state.topic_id)
        ]
        kafka = [
            group async for group in sliced(slices, self._kafka) if is_meant(KAFKA, group.name.encode(), group.topic_id)
        ]
        return [*found.values(), *sessions, *kafka]

    async def _items(self, found: Sequence[list[int] | Session | KafkaGroup]) -> AsyncIterator[Document]:
        async for one in sliced(self._server.log.slices, found):
            described = await self._item(one)
            if described is not None:
                yield described

    async def _item(self, found: list[int] | Session | KafkaGroup) -> Document | None:
        if isinstance(found, KafkaGroup):
            return await self._kafka.item(found)
        return await self._described(found) if isinstance(found, list) else await self._session_item(found)

    async def show(self, name: bytes, query: MultiMapping[str]) -> Document:
        """One group."""
        found = self._find(name, query)
        if isinstance(found, list):
            for cursor in found:
                await self._opened(cursor)
        described = await self._item([cursor.id for cursor in found] if isinstance(found, list) else found)
        if described is None:
            raise _unknown(name)
        return described

    def topic_of(self, name: bytes, query: MultiMapping[str]) -> bytes | None:
        """The topic that rights to a group are asked for; None: there is no such group, or it is not said which."""
        try:
            found = self._find(name, query)
        except (UnknownGroup, Conflict, BadRequest):
            return None
        if isinstance(found, list):
            return found[0].topic_name
        return self._topic_name(found.topic_id if isinstance(found, KafkaGroup) else found.state.topic_id)

    async def starts(self, name: bytes, query: MultiMapping[str], index: int | None) -> list[tuple[Partition, int]]:
        """Where its readers go on: partitions, or the one of this number, and the first number not acknowledged."""
        starts = []
        async for cursor in sliced(self._server.log.slices, self._cursors(name, query)):
            if index in (None, cursor.partition.index):
                if cursor.is_paused:
                    raise Conflict("the group is paused")
                partition = await self._opened(cursor)
                if cursor.owner == OWNER:
                    cursor.used()
                starts.append((partition, cursor.deliveries.floor + 1))
        if not starts:
            raise BadRequest(f"the group has no position in partition {index}")
        return starts

    # --- changing

    async def create(self, body: Document) -> Document:
        """A group of HTTP consumers: a position in each partition of a topic, or in those that are named.

        Each position is durable by itself. Asked again, the group gets the positions that it lacks: a crash amid the
        first time may have left it some.
        """
        name, wanted = bytes_field(body, "name"), bytes_field(body, "topic")
        if not name or not wanted:
            raise BadRequest("name and topic are missing" if not wanted else "name is missing")
        if name.isdigit():
            raise BadRequest("a name of digits alone is that of a subscription; take another one")
        topic = self._api.find(wanted)
        indexes = set(_indexes(body, topic))
        start = _position(body, "from") if "from" in body else EARLIEST
        cursors = self._server.log.cursors
        there = {key.partition: key.topic_id for key in cursors.names.of(name) if key.owner == OWNER}
        lacking = sorted(indexes - there.keys())
        if there and (not lacking or topic.id not in there.values()):
            raise Conflict(f"there is a group {_readable(name)!r} of HTTP consumers")
        if cursors.names.counts[OWNER] + len(lacking) > HTTP_GROUPS_POSITIONS_MAX:
            raise LimitReached(
                f"HTTP consumers have {HTTP_GROUPS_POSITIONS_MAX} positions together; delete some groups"
            )
        opened = [await self._api.opened(topic, index) for index in lacking]
        made: list[Cursor] = []
        try:
            for partition in opened:
                after_seq = min(start.resolve(Extent(partition)) - 1, partition.committed_seq)
                create = partial(cursors.create, OWNER, partition, after_seq=after_seq, name=name)
                made.append(await self._api.durable(_durably(create)))
        except Exception:
            for cursor in made:
                cursors.delete(cursor)
            raise
        described = await self._described([cursor.id for cursor in self._cursors(name, _ONLY_OURS)])
        if described is None:
            raise _unknown(name)
        return described

    async def commit(self, name: bytes, query: MultiMapping[str], body: Document) -> Document:
        """Everything before these positions is done with; answered when that is on disk."""
        by_index = {cursor.partition.index: cursor for cursor in self._cursors(name, query)}
        protocol = next(iter(by_index.values())).owner
        if protocol != OWNER:
            raise Conflict(f"positions of a {protocol} group move as its readers acknowledge; reset sets them")
        wanted: dict[Cursor, int] = {}
        positions = body.get("positions")
        if not isinstance(positions, list) or not positions or not all(isinstance(one, dict) for one in positions):
            raise BadRequest("positions must be a list of objects with partition and next_offset, at least one")
        for one in positions:
            if unknown := one.keys() - {"partition", "next_offset"}:
                raise BadRequest(f"no field {min(unknown)!r} of a position; there are partition, next_offset")
            cursor = by_index.get(int_field(one, "partition", 0))
            if cursor is None:
                raise BadRequest(f"the group has no position in partition {one.get('partition', 0)}")
            if cursor in wanted:
                raise BadRequest(f"partition {cursor.partition.index} is named twice")
            wanted[cursor] = int_field(one, "next_offset")
        partitions = await self._all_opened(name, list(wanted))  # from here on nothing is waited for
        for partition, (cursor, next_seq) in zip(partitions, wanted.items(), strict=True):
            end = partition.committed_seq + 1
            if next_seq > end:
                raise BadRequest(
                    f"next_offset of partition {cursor.partition.index} is {next_seq}; the log ends at {end}"
                )
            if next_seq < cursor.deliveries.next_seq:
                text = f"partition {cursor.partition.index} is at {cursor.deliveries.next_seq} already; reset goes back"
                raise Conflict(text)
        for cursor, next_seq in wanted.items():
            first = cursor.deliveries.next_seq
            if next_seq > first:
                cursor.totals.acknowledged += cursor.partition.gaps.count(first, next_seq - 1).most
                cursor.finished(Plan(first, next_seq - 1, False), next_seq - 1)
        await self._api.durable(self._server.log.cursors.flush)
        return {"positions": [{"partition": one.partition.index, "next_offset": seq} for one, seq in wanted.items()]}

    async def reset(self, name: bytes, query: MultiMapping[str], body: Document) -> Document:
        """Let a group go on somewhere else, or say what that would mean."""
        to, dry_run = _position(body, "to"), body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise BadRequest("dry_run must be true or false")
        index = int_field(body, "partition") if "partition" in body else None
        found = self._find(name, query)
        if isinstance(found, KafkaGroup):
            positions = await self._kafka.reset(found, to, index, dry_run=dry_run)
        else:
            positions = await self._reset(name, _cursors_of(found), to, index, dry_run=dry_run)
        return {
            "dry_run": dry_run,
            "again": sum(item["again"] for item in positions),
            "passed": sum(item["passed"] for item in positions),
            "positions": positions,
        }

    async def _reset(
        self, name: bytes, group: list[Cursor], to: Position, index: int | None, *, dry_run: bool
    ) -> list[Document]:
        cursors = [one for one in group if index in (None, one.partition.index)]
        if not cursors:
            raise BadRequest(f"the group has no position in partition {index}")
        positions = []
        partitions, wanted = await self._all_opened(name, cursors), []
        async for partition in sliced(self._server.log.slices, partitions):  # a time is looked up in its index
            wanted.append(to.resolve(Extent(partition)))
        self._check_alive(name, cursors)  # from here on nothing is waited for
        for partition, cursor, seq in zip(partitions, cursors, wanted, strict=True):
            next_seq = min(seq, partition.committed_seq + 1)
            positions.append(subscriptions.reset_item(cursor.entry(), next_seq, partition.gaps))
        if not dry_run:
            for cursor, item in zip(cursors, positions, strict=True):
                cursor.reset(item["next_offset"] - 1)
            await self._api.durable(self._server.log.cursors.flush)
        return positions

    async def pause(self, name: bytes, query: MultiMapping[str], *, is_paused: bool) -> Document:
        """Have a group deliver nothing, or go on."""
        for cursor in self._cursors(name, query):
            await self._positions.pause(b"%d" % cursor.id, is_paused=is_paused)
        return await self.show(name, query)

    async def redrive(self, name: bytes, query: MultiMapping[str], body: Document) -> Document:
        """Append its dead letters to a topic once more."""
        limit, count = int_field(body, "limit", 2**62), 0
        for cursor in self._cursors(name, query):
            answer = await self._positions.redrive(b"%d" % cursor.id, body | {"limit": limit - count})
            count += answer["redriven"]
        return {"redriven": count}

    async def delete(self, name: bytes, query: MultiMapping[str]) -> Document:
        """Remove a group with all its positions."""
        found = self._find(name, query)
        if isinstance(found, KafkaGroup):
            await self._kafka.delete(found)
        elif not isinstance(found, list):
            await self._api.drop_session(name)
        else:
            for cursor in found:
                await self._api.durable(partial(self._server.log.cursors.delete, cursor))
        return {"deleted": _readable(name)}

    # --- inside

    def _find(self, name: bytes, query: MultiMapping[str]) -> list[Cursor] | Session | KafkaGroup:
        """The positions of a group, by partition, or the session or the group of Kafka's consumers that it is."""
        protocol, topic_name = query.get("protocol"), query.get("topic")
        cursors = self._server.log.cursors
        ids = list(cursors.names.of(name).values())
        if name.isdigit() and len(name) <= 19:
            ids.append(int(name))
        found: dict[tuple[str, int], list[Cursor]] = {}
        for cursor in filter(None, map(cursors.get, ids)):
            if cursor.name not in (b"", name) or cursor.owner == REDRIVE_OWNER:
                continue  # whoever has a name is not found by its id
            if protocol in (None, cursor.owner) and topic_name in (None, _readable(cursor.topic_name)):
                found.setdefault((cursor.owner, cursor.partition.topic.id), []).append(cursor)
        if len(found) > 1:
            raise Conflict(f"{len(found)} groups are called {_readable(name)!r}; say which by ?protocol= or ?topic=")
        if found:
            return sorted(next(iter(found.values())), key=lambda cursor: cursor.partition.index)
        if protocol in (None, SESSIONS):
            services, uuid = self._server.services.get(SESSIONS), name.decode("utf-8", "replace")
            sessions = services.sessions if services is not None else None
            if sessions is not None and uuid in sessions:
                info = sessions.info(uuid)
                if isinstance(info.state, RecordsState):
                    return info
        if protocol in (None, KAFKA):
            return self._find_kafka(name, topic_name)
        raise _unknown(name)

    def _find_kafka(self, name: bytes, topic_name: str | None) -> KafkaGroup:
        groups = [
            group
            for group in self._kafka.named(name.decode("utf-8", "replace"))
            if topic_name in (None, _readable(self._topic_name(group.topic_id) or b""))
        ]
        if len(groups) > 1:
            raise Conflict(f"the group {_readable(name)!r} is one of {len(groups)} topics; say which by ?topic=")
        if not groups:
            raise _unknown(name)
        return groups[0]

    def _cursors(self, name: bytes, query: MultiMapping[str]) -> list[Cursor]:
        return _cursors_of(self._find(name, query))

    async def _opened(self, cursor: Cursor) -> Partition:
        return await self._api.opened(cursor.partition.topic, cursor.partition.index)

    async def _all_opened(self, name: bytes, cursors: Sequence[Cursor]) -> list[Partition]:
        """Their partitions. Raises UnknownGroup: one of the positions was deleted meanwhile."""
        opened = [await self._opened(cursor) for cursor in cursors]
        self._check_alive(name, cursors)
        return opened

    @staticmethod
    def _check_alive(name: bytes, cursors: Sequence[Cursor]) -> None:
        """Raises UnknownGroup: one of the positions was deleted meanwhile."""
        if not all(cursor.alive for cursor in cursors):
            raise _unknown(name)

    async def _described(self, ids: Sequence[int]) -> Document | None:
        """A group; None: it is gone, or damaged."""
        items = []
        for cursor_id in ids:
            entry = self._server.log.cursors.entry(cursor_id)
            if entry is not None:
                try:
                    items.append(await self._positions.item(entry))
                except Corrupt as problem:
                    report(str(problem))
        return group_item(items) if items else None

    def _sessions(self) -> Iterator[SessionInfo[RecordsState]]:
        services = self._server.services.get(SESSIONS)
        for info in (services.sessions if services is not None else None) or ():
            if isinstance(info.state, RecordsState):
                yield info

    def _standings(self) -> Iterator[tuple[Key, Standing]]:
        for info in self._sessions():
            yield info.uuid, session_standing(info)
        yield from self._kafka.standings()

    async def _session_item(self, info: SessionInfo[RecordsState]) -> Document:
        lag = await lag_at(self._server.log, info.uuid, lambda: session_standing(info))
        return session_group(info, self._topic_name(info.state.topic_id), lag)

    def lag_history(self, item: Document) -> Sequence[int]:
        """The records that waited for a group in the last hour (see `engine.cursors.lags`)."""
        lags = self._server.log.cursors.lags
        if item["protocol"] == KAFKA:
            topic = self._server.log.catalog.get((item["topic"] or "").encode())
            return lags.history([(item["name"], topic.id, one["partition"]) for one in item["positions"] if topic])
        return lags.history([item["name"] if one["id"] is None else one["id"] for one in item["positions"]])

    def _topic_name(self, topic_id: int) -> bytes | None:
        topic = self._server.log.catalog.by_id(topic_id)
        return topic.name if topic is not None else None


def _durably(create: Callable[..., Cursor]) -> Callable[[OnDone], Cursor]:
    return lambda done: create(on_durable=done)


def _cursors_of(found: list[Cursor] | Session | KafkaGroup) -> list[Cursor]:
    if isinstance(found, KafkaGroup):
        raise Conflict("Kafka's consumers fetch and commit what they like: their group can be reset and deleted")
    if not isinstance(found, list):
        raise Conflict("the position of a session moves by what its client acknowledges")
    return found


def _readable(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _unknown(name: bytes) -> UnknownGroup:
    return UnknownGroup(f"no group {name.decode('utf-8', 'backslashreplace')!r}")


def _position(body: Document, name: str) -> Position:
    text = body.get(name)
    try:
        return parse(text if isinstance(text, str) else str(text) if isinstance(text, int) else "")
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from None


def _indexes(body: Document, topic: Topic) -> Sequence[int]:
    """The partitions that a new group reads. Raises BadRequest."""
    indexes = body.get("partitions", range(topic.partition_count))
    if not isinstance(indexes, list | range) or not indexes or len(indexes) > HTTP_PARTITIONS_MAX:
        raise BadRequest(f"partitions must be a list of 1 to {HTTP_PARTITIONS_MAX} numbers")
    if not all(type(index) is int and 0 <= index < topic.partition_count for index in indexes):
        raise BadRequest(f"the topic has partitions 0 to {topic.partition_count - 1}")
    return sorted(set(indexes))

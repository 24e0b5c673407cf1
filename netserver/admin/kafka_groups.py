"""Kafka's groups in the one list of groups: looked at, reset and removed as the others, by name and topic.

As in the original nobody changes what a group has committed while somebody is in it: members commit where they are, and
would overwrite it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.cursors.lags import Lag, Standing
from engine.partitions.extent import Extent
from netserver.admin.api import Api, Conflict
from netserver.admin.lags import lag_at
from netserver.admin.slices import sliced
from netserver.http.errors import BadRequest
from netserver.kafka.committed import Committed
from netserver.kafka.describe import PROTOCOL, Consumers, group_item, membership, reset_item, standing
from netserver.limits import KAFKA_LAGS_MAX

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.positions import Position
    from netserver.admin.served import Served

Document = dict[str, Any]


class KafkaGroup(NamedTuple):
    """A group in a topic; 0: it has committed nothing, and somebody is in it."""

    name: str
    topic_id: int


class KafkaGroups:
    """The operations on them; errors of the engine pass through. A server that does not speak Kafka shows none."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api

    @property
    def _consumers(self) -> Consumers | None:
        services = self._server.services.get(PROTOCOL)
        return services.consumers if services is not None else None

    def __iter__(self) -> Iterator[KafkaGroup]:
        consumers = self._consumers
        if consumers is not None:
            for name in consumers.offsets.names:
                yield from self.named(name)
            for group in consumers.groups:
                if not consumers.offsets.of(group.name):
                    yield from self.named(group.name)

    def named(self, name: str) -> list[KafkaGroup]:
        """Those of a name, one for each topic."""
        consumers = self._consumers
        if consumers is None:
            return []
        topics = dict.fromkeys(topic_id for topic_id, _ in consumers.offsets.of(name))
        if not topics and consumers.has_members(name):
            return [KafkaGroup(name, 0)]
        return [KafkaGroup(name, topic_id) for topic_id in topics]

    def standings(self) -> Iterator[tuple[tuple[str, int, int], Standing]]:
        """Where they stand, as ``engine.cursors.lags`` wants it: of the first ``KAFKA_LAGS_MAX`` positions."""
        return islice(self._standings(), KAFKA_LAGS_MAX)

    def _standings(self) -> Iterator[tuple[tuple[str, int, int], Standing]]:
        consumers = self._consumers
        for name in consumers.offsets.names if consumers is not None else ():
            assert consumers is not None
            for place, committed in list(consumers.offsets.of(name).items()):
                yield (name, *place), standing(place, committed)

    def committed(self, group: KafkaGroup) -> dict[int, Committed]:
        """What it has committed in its topic, by partition."""
        consumers = self._consumers
        places = consumers.offsets.of(group.name).items() if consumers is not None else ()
        return {index: one for (topic_id, index), one in sorted(places) if topic_id == group.topic_id}

    async def item(self, group: KafkaGroup) -> Document | None:
        """One of them, and who is in it; None: it is gone."""
        consumers, positions = self._consumers, {}
        found = self.committed(group)
        async for index, committed in sliced(self._server.log.slices, found.items()):
            positions[index] = committed, await self._lag(group, index, committed)
        if consumers is None or (not positions and not consumers.has_members(group.name)):
            return None
        topic = self._server.log.catalog.by_id(group.topic_id)
        name = topic.name.decode() if topic is not None else None
        return group_item(group.name, name, positions) | membership(consumers.groups.get(group.name), name)

    async def _lag(self, group: KafkaGroup, index: int, committed: Committed) -> Lag:
        place = (group.topic_id, index)
        return await lag_at(self._server.log, (group.name, *place), lambda: standing(place, committed))

    async def reset(self, group: KafkaGroup, to: Position, index: int | None, *, dry_run: bool) -> list[Document]:
        """Let it go on somewhere else, or say what that would mean."""
        indexes = [one for one in self.committed(group) if index in (None, one)]
        if not indexes:
            raise BadRequest("the group has committed nothing" + ("" if index is None else f" in partition {index}"))
        self._check_empty(group)
        partitions = await self._opened(group, indexes)
        wanted = [to.resolve(Extent(one)) async for one in sliced(self._server.log.slices, partitions)]
        consumers = self._check_empty(group)  # from here on nothing is waited for
        found, places, items = self.committed(group), {}, []
        for partition, seq in zip(partitions, wanted, strict=True):
            one, to_seq = found.get(partition.index), min(seq, partition.committed_seq + 1)
            if one is not None:
                items.append(reset_item(partition.index, one, to_seq, partition.gaps))
                places[group.topic_id, partition.index] = Committed(to_seq)
        if not dry_run:
            await self._api.durable(partial(consumers.offsets.commit, group.name, places))
        return items

    async def _opened(self, group: KafkaGroup, indexes: list[int]) -> list[Partition]:
        topic = self._server.log.catalog.by_id(group.topic_id)
        if topic is None:
            raise Conflict("the topic was deleted")
        return [await self._api.opened(topic, index) for index in indexes]

    async def delete(self, group: KafkaGroup) -> None:
        """Forget what it has committed in its topic; a group that has nothing more is gone."""
        consumers = self._check_empty(group)
        await self._api.durable(partial(consumers.offsets.remove, group.name, topic_id=group.topic_id))
        if not consumers.offsets.of(group.name) and not consumers.has_members(group.name):
            consumers.groups.remove(group.name)

    def _check_empty(self, group: KafkaGroup) -> Consumers:
        """Raises Conflict: somebody is in it."""
        consumers = self._consumers
        assert consumers is not None, "it has shown a group"
        if consumers.has_members(group.name):
            raise Conflict(f"consumers are in the group {group.name!r}: it is changed when they have left")
        return consumers

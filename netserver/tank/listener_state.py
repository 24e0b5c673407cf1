"""What all TANK connections of a server share: topics as TANK sees them, silent connections, Status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, InvalidConfig, NotStored, ReadOnly, TopicExists
from netserver.errors import ProtocolError

from .limits import PARTITIONS_PER_REQUEST, SILENT_CONNECTION_S, SILENT_CONNECTIONS_MAX
from .messages import (
    ConsumeRequest,
    CreateCode,
    CreateTopicRequest,
    DiscoverPartitionsRequest,
    Request,
    StatusRequest,
    StatusResponse,
    TopicEntry,
)
from .responses import encode_response, encode_topic, topics_frame
from .topic_config import topic_settings
from .waiting_bounds import WaitingRequests

if TYPE_CHECKING:
    import asyncio

    from engine.partitions.partition import Partition
    from engine.state.topic_entries import Topic
    from netserver.shell.connection import Connection, Services

NODE_VERSION: Final = 400
"""Version in Status: major * 100 + minor, that of the server whose behaviour this one follows."""

_NAME: Final = re.compile(rb"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")


def is_topic_name(name: bytes) -> bool:
    """Whether TANK can spell a topic's name: 1 to 64 of ``A-Za-z0-9_-``, letters or digits at both ends."""
    return _NAME.fullmatch(name) is not None


class ListenerState:
    """Made once for each server; everything in the event loop's thread."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.log = services.log
        self.catalog = services.log.catalog
        self.waiting = WaitingRequests(services.log.slices)
        self.checks = ThreadPoolExecutor(1, thread_name_prefix="quintlog-tank")
        """Where large publishes are checked, one after the other."""
        self.silent = SilentConnections(services.loop, services.shell.is_crowded)
        self.opening_s = 0.0
        """Time that requests waited for partitions to be opened."""
        self.started_unix_s = int(time.time())
        self._partitions = 0
        self._entries: dict[bytes, bytes] = {}  # in the answer to DiscoverTopics, by name
        for topic in self.catalog:
            self._made(topic)
        self.catalog.listen(self._changed)

    def _changed(self, topic: Topic, change: str) -> None:
        if change == "created":
            self._made(topic)
        elif change == "deleted":
            if self._entries.pop(topic.name, None) is not None:
                self._partitions -= topic.partition_count
            self.waiting.topic_deleted(topic)

    def _made(self, topic: Topic) -> None:
        if is_topic_name(topic.name):
            self._entries[topic.name] = encode_topic(TopicEntry(topic.name, topic.partition_count))
            self._partitions += topic.partition_count

    def topic(self, name: bytes) -> Topic | None:
        """The topic of this name; None also when TANK cannot spell it."""
        topic = self.catalog.get(name)
        return topic if topic is not None and not topic.deleting and is_topic_name(name) else None

    def partition(self, topic: Topic, index: int) -> Partition | None:
        """The partition, None when the topic has fewer.

        Raises:
            ProtocolError: its files cannot be looked for now; there is no answer that says so.
        """
        try:
            return self.log.partition(topic, index) if index < topic.partition_count else None
        except NotStored as error:
            raise ProtocolError(str(error), "unavailable") from None

    def is_written(self, topic: Topic, index: int) -> bool:
        """Whether a partition may hold records: it has a number, or at least files (of which the state is too old to
        know). True for a partition that the topic does not have: its caller says so."""
        if index in topic.numbers or index >= topic.partition_count:
            return True
        try:
            return self.log.files.exists(self.log.data_dir / "topics" / str(topic.id) / str(index))
        except OSError:  # it may: whoever opens it is told what is wrong
            return True

    def weight(self, request: Request) -> int:
        """How many usual requests one counts for, by the partitions that it looks at."""
        partitions = 0
        if isinstance(request, DiscoverPartitionsRequest):
            topic = self.topic(request.topic)
            partitions = len(request.partition_ids) or (topic.partition_count if topic is not None else 0)
        elif isinstance(request, ConsumeRequest):
            partitions = sum(len(topic.partitions) for topic in request.topics)
        elif isinstance(request, StatusRequest):
            partitions = self.log.known_count
        return 1 + partitions // PARTITIONS_PER_REQUEST

    def status(self, request_id: int, open_partitions: int) -> bytes:
        """The answer to Status."""
        return encode_response(
            StatusResponse(
                request_id,
                len(self._entries),
                self._partitions,
                open_partitions,
                min(int(self.opening_s * 1000), 0xFFFF_FFFF),
                self.started_unix_s,
                NODE_VERSION,
            )
        )

    def topics(self, request_id: int) -> bytes:
        """The answer to DiscoverTopics: its entries are there, as to make those of 10,000 topics takes a long turn."""
        return topics_frame(request_id, len(self._entries), b"".join(self._entries.values()))

    def create_topic(self, request: CreateTopicRequest, maker: str, done: Callable[[CreateCode], None]) -> None:
        """Makes a topic for ``maker``; ``done`` is called with the result, when it is on disk if it is CREATED."""
        if not is_topic_name(request.topic) or not request.partition_count:
            done(CreateCode.INVALID_REQUEST)
            return

        def durable(error: Exception | None) -> None:
            if error is None:
                done(CreateCode.CREATED)
            else:
                done(CreateCode.READ_ONLY if isinstance(error, ReadOnly) else CreateCode.SYSTEM_ERROR)

        try:
            settings = topic_settings(request.config, self.log.config.topic)
            self.catalog.create(
                request.topic,
                partition_count=request.partition_count,
                settings=settings,
                on_durable=durable,
                maker=maker,
            )
        except TopicExists:
            done(CreateCode.EXISTS)
        except InvalidConfig:
            done(CreateCode.INVALID_CONFIG)
        except EngineError as error:
            durable(error)


class SilentConnections:
    """Connections that have not sent a byte: not for long, and few where room is scarce, so that they cannot use up the
    descriptors.

    Args:
        is_crowded: whether it is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, is_crowded: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_crowded = is_crowded
        self._members: dict[Connection, float] = {}  # oldest first; the time at which each is closed
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, connection: Connection) -> None:
        """A connection was accepted."""
        self._members[connection] = self._loop.time() + SILENT_CONNECTION_S
        if len(self._members) > SILENT_CONNECTIONS_MAX and self._is_crowded():
            self._close(next(iter(self._members)), "too many connections that send nothing")
        if self._timer is None:
            self._timer = self._loop.call_later(SILENT_CONNECTION_S, self._look)

    def remove(self, connection: Connection) -> None:
        """It has sent something, or is gone."""
        self._members.pop(connection, None)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._members:
            connection, due = next(iter(self._members.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._look)
                return
            self._close(connection, "nothing was sent")

    def _close(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        connection.close(f"{reason} ({SILENT_CONNECTION_S:.0f} s, {SILENT_CONNECTIONS_MAX} connections)", "silent")

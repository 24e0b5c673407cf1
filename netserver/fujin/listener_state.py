"""What all Fujin connections of a server share: names, policy, reader groups, open transactions, scratch buffers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.policies import CursorPolicy
from netserver.access.table import right_of
from netserver.config.fujin import parse_start
from netserver.fujin.codec import Options
from netserver.fujin.groups import Group
from netserver.fujin.limits import (
    DELETED_REMEMBERED_MAX,
    FETCH_BYTES_MAX,
    ROUTES_MAX,
    RUN_WRITES_MAX,
    TRANSACTIONS_BYTES_MAX,
)

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.topic_catalog import Change, Topic
    from netserver.access.access import Visitor
    from netserver.config.fujin import FujinSection
    from netserver.config.sections import ServerConfig
    from netserver.shell.services import Services

log = logging.getLogger(__name__)

WRITE = right_of("fujin", "WRITE")
READ = right_of("fujin", "CONNECT_READER")
OWNER = "fujin"


class Holder(Protocol):
    """A writer in a transaction; see `netserver.fujin.writer.Writer`."""

    writer_id: bytes
    used_at: float

    def abort(self, reason: str) -> None:
        """Roll back."""


class ReaderOptions(NamedTuple):
    """What a reader's name stands for."""

    topic: bytes
    group: bytes
    start: str | int | float
    fetch_empty: str


class ListenerState:
    """Shared by all streams; one per server.

    Attributes:
        section: the settings in force.
        options: for decoders.
        is_synced: the answer to an ACK waits until it is on disk.
        groups: those with readers, by (group, partition).
        open_transactions: writers in a transaction.
        transaction_bytes: in all of them together.
        transactions: counts of ended ones by result.
        answers, out: scratch of the hot loops, valid within one call.
    """

    section: FujinSection
    options: Options

    def __init__(self, services: Services) -> None:
        self.services = services
        self.log = services.log
        self.cursors = services.log.cursors
        self.counters = services.counters
        self.loop = services.loop
        self.groups: dict[tuple[bytes, Partition], Group] = {}
        self.open_transactions: set[Holder] = set()
        self.transaction_bytes = 0
        self.transactions = {"committed": 0, "rolled_back": 0, "failed": 0}
        self.answers = bytearray(6 * RUN_WRITES_MAX)
        self.out = bytearray(FETCH_BYTES_MAX)
        self._fenced: dict[bytes, Holder] = {}
        self._routes: dict[bytes, Partition] = {}
        self._generation = -1
        self._deleted: dict[bytes, None] = {}
        self.log.catalog.listen(self._topic_changed)
        self.take_over(services.config)

    def take_over(self, config: ServerConfig) -> None:
        """Follow a configuration from now on."""
        section = self.section = config.fujin
        self.options = Options(section.message_bytes_max, section.write_headers)
        self.is_synced = section.acks == "synced"
        self._auto_create = config.engine.auto_create
        self._auto_create_by_readers = config.engine.auto_create_by_readers
        self._writers = {name.encode(): writer.topic.encode() for name, writer in section.writers if writer.topic}
        self._readers = {name.encode(): reader for name, reader in section.readers}
        self._routes.clear()
        self.cursors.set_policy(OWNER, _cursor_policy(section))

    # --- names

    def writer_partition(self, name: bytes, visitor: Visitor, maker: str) -> Partition | None:
        """Where a writer of this name writes; None: there is no such topic and none is to be made.

        Raises:
            Forbidden: the client may not. EngineError: it cannot be made.
        """
        catalog = self.log.catalog
        topic = self._writers.get(name, name)
        visitor.demand("WRITE", WRITE, topic, is_there=catalog.get(topic) is not None)
        if self._generation != catalog.generation or len(self._routes) > ROUTES_MAX:
            self._routes.clear()
        found = self._routes.get(name)
        if found is None:
            found = self._partition(topic, maker)
            self._generation = catalog.generation
            if found is not None:
                self._routes[name] = found
        return found

    def reader(self, name: bytes) -> ReaderOptions:
        """What a reader's name stands for."""
        section = self.section
        own = self._readers.get(name)
        if own is None:
            return ReaderOptions(name, section.group.encode(), parse_start(section.start), section.fetch_empty)
        return ReaderOptions(
            own.topic.encode() or name,
            (own.group or section.group).encode(),
            parse_start(own.start or section.start),
            own.fetch_empty or section.fetch_empty,
        )

    def reader_partition(self, topic: bytes, visitor: Visitor, maker: str) -> Partition | None:
        """What is read from a topic; None and errors as in ``writer_partition``.

        A reader that comes back does not bring a deleted topic back: that takes somebody who writes.
        """
        visitor.demand("CONNECT_READER", READ, topic, is_there=self.log.catalog.get(topic) is not None)
        return None if topic in self._deleted else self._partition(topic, maker, to_read=True)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "deleted":
            self._deleted[topic.name] = None
            if len(self._deleted) > DELETED_REMEMBERED_MAX:
                del self._deleted[next(iter(self._deleted))]
        elif change == "created":
            self._deleted.pop(topic.name, None)

    def _partition(self, topic_name: bytes, maker: str, *, to_read: bool = False) -> Partition | None:
        topic = self.log.catalog.get(topic_name)
        if topic is None:
            if not self._auto_create or (to_read and not self._auto_create_by_readers):
                return None
            if to_read:
                name = topic_name.decode(errors="backslashreplace")
                log.info("topic %r is made because somebody wants to read it", name)
            topic = self.log.catalog.create(topic_name, maker=maker)
        return None if topic.deleting else self.log.partition(topic)

    # --- groups

    def group(self, name: bytes, partition: Partition) -> Group:
        """The readers of a group in a partition."""
        key = (name, partition)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(self, name, partition)
        return group

    # --- transactions

    def begun(self, writer: Holder) -> None:
        """A transaction begins; one of an older stream with the same writer id is over."""
        self.open_transactions.add(writer)
        if writer.writer_id:
            older = self._fenced.get(writer.writer_id)
            self._fenced[writer.writer_id] = writer
            if older is not None and older is not writer:
                older.abort("a newer writer with the same id has begun a transaction")

    def ended(self, writer: Holder, result: str) -> None:
        """It is over; ``result`` is a key of ``transactions``."""
        if writer in self.open_transactions:
            self.open_transactions.discard(writer)
            self.transactions[result] += 1
        if self._fenced.get(writer.writer_id) is writer:
            del self._fenced[writer.writer_id]

    def may_hold(self, size_bytes: int) -> bool:
        """Open transactions may take so much more memory."""
        return self.transaction_bytes + size_bytes <= TRANSACTIONS_BYTES_MAX

    def tick(self, now_s: float) -> None:
        """Roll back transactions that nobody goes on with."""
        timeout_ms = self.section.transaction_timeout
        if timeout_ms:
            for writer in tuple(self.open_transactions):
                if now_s - writer.used_at >= timeout_ms / 1000:
                    writer.abort(f"transaction timed out after {timeout_ms} ms without a command")


def _cursor_policy(section: FujinSection) -> CursorPolicy:
    return CursorPolicy(
        DeliveryPolicy(
            retry_backoff_ms=section.ack_timeout,
            retry_backoff_max_ms=max(section.ack_timeout, 3_600_000),
            deliveries_max=section.deliveries_max,
        ),
        dead_letter_suffix=section.dead_letter_suffix.encode(),
    )

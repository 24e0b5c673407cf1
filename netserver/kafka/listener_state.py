"""What all Kafka connections of a server share: topics as Kafka sees them, and where clients are sent."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from netserver.config.settings import Address

from .committed import Offsets, Place
from .coordinator import Groups
from .describe import Consumers
from .limits import CHECKED_TOGETHER_MAX, TOPIC_NAME_CHARS_MAX
from .transactions import Transactions
from .waiting import DiskRoom

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.topic_entries import Topic
    from netserver.shell.connection import Connection, Services

NODE: Final = 1
"""This server, the only one of its cluster."""
CLUSTER: Final = "quintlog"

_NAME: Final = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % TOPIC_NAME_CHARS_MAX)


def is_new_name(name: bytes) -> bool:
    """Whether a topic of this name may be made by Kafka's clients: what the original takes."""
    return _NAME.fullmatch(name) is not None and name not in (b".", b"..")


class ListenerState:
    """Made once for each server; everything in the event loop's thread.

    Attributes:
        checks: where large requests are read and checked, one after the other.
        checked: held by those that are, until they are appended.
        disk_room: whether any may be.
        waiting_partitions: those of Fetches that wait.
        groups: who is in them.
        offsets: what they have committed.
        transactions: of producers that have a name.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.log = services.log
        self.catalog = services.log.catalog
        self.checks = ThreadPoolExecutor(1, thread_name_prefix="quintlog-kafka")
        self.checked = asyncio.Semaphore(CHECKED_TOGETHER_MAX)
        self.disk_room = DiskRoom(services.shell.pressure)
        self.waiting_partitions = 0
        self.groups = Groups(services.loop)
        self.offsets = Offsets(services.log)
        services.consumers = Consumers(self.groups, self.offsets)
        self.transactions = Transactions(services.log, services.loop, self.offsets, services.counters)

    def topic(self, name: str) -> Topic | None:
        """The topic of this name."""
        topic = self.catalog.get(name.encode())
        return topic if topic is not None and not topic.deleting else None

    def partition(self, name: str, index: int) -> Partition | None:
        """A partition, which may have to be opened; None when there is no such one.

        Raises:
            EngineError: its files cannot be looked for now.
        """
        topic = self.topic(name)
        return self.log.partition(topic, index) if topic is not None and 0 <= index < topic.partition_count else None

    def place(self, name: str, index: int) -> Place | None:
        """Where a partition is found for as long as its topic is there; None when there is no such one."""
        topic = self.topic(name)
        return (topic.id, index) if topic is not None and 0 <= index < topic.partition_count else None

    def record_bytes_max(self, name: str) -> int:
        """The largest record of a topic; of one that is not there what a new one would have. (Any thread.)"""
        topic = self.topic(name)
        return (topic.config if topic is not None else self.services.config.engine.topic).record_bytes_max

    def forget_unused_groups(self) -> None:
        """Remove offsets that nobody has wanted for long."""
        for name in self.offsets.unused(self.services.loop.time()):
            group = self.groups.get(name)
            if group is None or not group.members:
                self.offsets.remove(name)

    def address(self, connection: Connection) -> Address:
        """Where clients are told that this server is: as configured, else where this one has found it."""
        advertised = self.services.config.kafka.advertised
        if advertised:
            return Address.parse(advertised)
        host, port, *_ = connection.transport.get_extra_info("sockname")
        return Address(host, port)

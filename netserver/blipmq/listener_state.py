"""What all BlipMQ connections of a server share: policy, topics by name, and the buffers of the hot loops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from engine.callbacks import call_each
from engine.cursors.deliveries import DeliveryPolicy
from engine.cursors.policies import CursorPolicy
from netserver.blipmq.limits import POLL_REPLY_BYTES_MAX, ROUTES_MAX, RUN_FRAMES_MAX
from netserver.blipmq.patterns import PatternIndex

if TYPE_CHECKING:
    from engine.cursors.cursor import Cursor
    from engine.partitions.partition import Partition
    from engine.state.topic_catalog import Change
    from engine.state.topic_entries import Topic
    from netserver.config.blipmq import BlipmqSection
    from netserver.config.sections import ServerConfig
    from netserver.shell.connection import Services

log = logging.getLogger("quintlog.blipmq")

OWNER = "blipmq"


class Watcher(Protocol):
    """A subscription of topics that may be made later; see `netserver.blipmq.session_v2`."""

    def topic_made(self, partition: Partition, after_seq: int) -> None:
        """A topic that it is of was made; read it after ``after_seq``."""


class ListenerState:
    """Shared by all sessions; one per server.

    Attributes:
        is_synced: the PONG after an ACK waits for the ACK.
        message_ttl_ms: 0 = none.
        clock_ms: the clock of cursors.
        age_ms: of a message that was stored at a time; asked for those with a time to live of their own.
        speaks_version_2: HELLO 2 is accepted.
        patterns: those of all connections.
        names: subscriptions of one topic by its name, which go on with the next topic of that name.
        cids, out: scratch of the hot loops, valid within one call.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.log = services.log
        self.cursors = services.log.cursors
        self.clock_ms = self.cursors.clock_ms
        self.age_ms = self.log.clock.age_ms
        self.counters = services.counters
        self.cids = bytearray(8 * RUN_FRAMES_MAX)
        self.out = bytearray(POLL_REPLY_BYTES_MAX)
        self._routes: dict[bytes, Partition] = {}
        self._generation = -1
        self.patterns: PatternIndex[Watcher] = PatternIndex()
        self.names: dict[bytes, dict[Watcher, None]] = {}
        self._listeners: dict[Callable[[Topic, Change], None], None] = {}
        self.log.catalog.listen(self._topic_changed)
        self._take_over(services.config)
        services.reloaders.append(self._reload)
        if services.config.admits_anybody("blipmq"):
            log.warning(
                "blipmq: no API keys are configured: any key is accepted, %s",
                "from anywhere" if services.config.server.insecure else "from this machine only",
            )

    def cursor(self, subscription_id: int) -> Cursor | None:
        """A BlipMQ subscription."""
        cursor = self.cursors.get(subscription_id)
        return cursor if cursor is not None and cursor.owner == OWNER else None

    def oldest_ms(self) -> int:
        """Records from before this time are too old to be delivered."""
        return self.log.clock.before_ms(self.message_ttl_ms) if self.message_ttl_ms else 0

    def _take_over(self, config: ServerConfig) -> None:
        section = config.blipmq
        self.is_synced = section.acks == "synced"
        self.message_ttl_ms = section.message_ttl
        self.handshake_timeout_ms = section.handshake_timeout
        self.speaks_version_2 = section.version_2
        self._topic_settings = section.topic_settings()
        self._auto_create = config.engine.auto_create
        self._auto_create_by_readers = config.engine.auto_create_by_readers
        self.cursors.set_policy(OWNER, cursor_policy(section))

    def _reload(self, config: ServerConfig) -> Callable[[], None]:
        return partial(self._take_over, config)

    def listen(self, listener: Callable[[Topic, Change], None]) -> None:
        """``listener`` is called when a topic was made, changed or deleted."""
        self._listeners[listener] = None

    def forget(self, listener: Callable[[Topic, Change], None]) -> None:
        """Undo :meth:`listen`."""
        self._listeners.pop(listener, None)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        found = [*self.patterns.find(topic.name), *self.names.get(topic.name, ())] if change == "created" else ()
        if found:
            partition = self.log.partition(topic)
            tell = [partial(one.topic_made, partition, partition.last_seq) for one in found]
            self.log.slices.later(partial(self.log.slices.call_each, "a new topic", tell))
        call_each("a change of a topic", [partial(listener, topic, change) for listener in self._listeners])

    def is_there(self, name: bytes) -> bool:
        """Whether there is a topic of this name."""
        return name in self._routes or self.log.catalog.get(name) is not None

    def route(self, name: bytes, maker: str, *, to_read: bool = False) -> Partition | None:
        """The partition of a topic, which is made for ``maker`` when it is missing; None: there is none, and none is to
        be made.

        Raises:
            InvalidConfig, LimitReached: it cannot be made
        """
        catalog = self.log.catalog
        if self._generation != catalog.generation or len(self._routes) > ROUTES_MAX:
            self._routes.clear()
            self._generation = catalog.generation
        found = self._routes.get(name)
        if found is not None:
            return found
        topic = catalog.get(name) or self._made(name, maker, to_read=to_read)
        if topic is None or topic.deleting:
            return None
        partition = self._routes[name] = self.log.partition(topic)
        self._generation = catalog.generation
        return partition

    def _made(self, name: bytes, maker: str, *, to_read: bool) -> Topic | None:
        if not self._auto_create or (to_read and not self._auto_create_by_readers):
            return None
        if to_read:
            log.info("topic %r is made because somebody wants to read it", name.decode(errors="backslashreplace"))
        return self.log.catalog.create(name, settings=self._topic_settings, maker=maker)


def cursor_policy(section: BlipmqSection) -> CursorPolicy:
    """What the settings mean for subscriptions."""
    return CursorPolicy(
        DeliveryPolicy(
            retry_backoff_ms=section.retry_backoff_ms,
            retry_backoff_max_ms=max(section.retry_backoff_max_ms, section.retry_backoff_ms),
            deliveries_max=section.max_retries,
            queue_capacity=section.queue_capacity,
            message_ttl_ms=section.message_ttl,
            unacknowledged_max=section.unacknowledged_max,
        ),
        dead_letter_suffix=section.dead_letter_suffix.encode(),
        expiry_ms=section.subscription_expiry,
    )

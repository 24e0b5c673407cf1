"""What the Figg connections of a server share: topics, framed batches, and what waits until it can go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from engine.errors import DiskFull, EngineError, LimitReached, ReadOnly, UnknownTopic
from netserver.access.access import Forbidden
from netserver.figg.limits import RETRY_LATEST_S, RETRY_S, SPACE_BYTES, UNREADABLE_S
from netserver.figg.subscription import SharedFrames, Subscription

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.topic_catalog import Change
    from engine.state.topic_entries import Topic
    from netserver.figg.session import FiggSession
    from netserver.shell.connection import Services

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the publishes of a connection are not stored, and since when (loop time).

    ``partition`` is None when there was none to publish to; ``committed_seq`` is its last readable record then.
    """

    topic: bytes
    partition: Partition | None
    problem: Exception
    since: float
    committed_seq: int


class ListenerState:
    """One object for a listener; everything runs in the loop's thread.

    Attributes:
        frames: framed batches for subscribers of the same place.
        frame_bytes_max: largest payload of a frame.
    """

    def __init__(self, services: Services) -> None:
        self.frames = SharedFrames()
        self.frame_bytes_max = services.config.figg.frame_bytes_max
        self._loop = services.loop
        self._log = services.log
        self._refusals: dict[FiggSession, Refusal] = {}
        self._waiting: dict[Subscription, FiggSession] = {}
        self._named: dict[bytes, dict[Subscription, None]] = {}  # those, by topic
        self._retry_at = 0.0
        self._space_seen: WeakKeyDictionary[Partition, float] = WeakKeyDictionary()
        self._looking = False
        self._log.catalog.listen(self._topic_changed)

    def is_there(self, topic: bytes) -> bool:
        """Whether there is a topic of this name."""
        return self._log.catalog.get(topic) is not None

    def partition(self, topic: bytes, maker: str) -> Partition:
        """Partition 0 of a topic, which is made for ``maker`` when there is none.

        Raises:
            EngineError: there is none, and none can be made.
        """
        return self._log.partition(self._log.catalog.get_or_create(topic, maker))

    def partition_to_read(self, topic: bytes, maker: str, *, create: bool) -> Partition:
        """The same for a subscription; with ``create`` False none is made. Raises as :meth:`partition`."""
        catalog = self._log.catalog
        found = catalog.get_or_create_to_read(topic, maker) if create else catalog.get(topic)
        if found is None:
            raise UnknownTopic("the topic was deleted")
        return self._log.partition(found)

    # --- what waits for better times

    def refused(self, session: FiggSession, topic: bytes, partition: Partition | None, problem: Exception) -> None:
        """``session`` acknowledges nothing any more because of ``problem``; it is closed when trying again may help."""
        log.warning("figg %s: publishes are not stored and not acknowledged: %s", session.connection.peer, problem)
        committed_seq = partition.committed_seq if partition is not None else 0
        self._refusals[session] = Refusal(topic, partition, problem, self._loop.time(), committed_seq)
        self._look_later()

    def unreadable(self, session: FiggSession, subscription: Subscription, problem: EngineError) -> None:
        """A subscription cannot be read now: it waits for its topic to be made, or, if there is one, for its end."""
        log.warning("figg %s: a subscription waits: %s", session.connection.peer, problem)
        if not self._waiting:
            self._retry_at = self._loop.time() + RETRY_LATEST_S
        self._waiting[subscription] = session
        self._named.setdefault(subscription.topic, {})[subscription] = None
        self._look_later()
        self._loop.call_later(UNREADABLE_S, self._give_up, subscription, problem)

    def _give_up(self, subscription: Subscription, problem: EngineError) -> None:
        """The protocol has no error: a client learns from a closed connection that there is something wrong.

        A topic that is only not there yet is no reason.
        """
        session = self._waiting.get(subscription)
        is_refused = isinstance(problem, Forbidden | LimitReached)
        if session is not None and (is_refused or self._log.catalog.get(subscription.topic) is not None):
            session.connection.close(f"a subscription cannot be served: {problem}", "unreadable")

    def forget(self, subscription: Subscription) -> None:
        """The subscription is over."""
        self._take(subscription)

    def _take(self, subscription: Subscription) -> FiggSession | None:
        """The session of one that waits; it no longer does."""
        session = self._waiting.pop(subscription, None)
        if session is not None:
            named = self._named[subscription.topic]
            del named[subscription]
            if not named:
                del self._named[subscription.topic]
        return session

    def leave(self, session: FiggSession) -> None:
        """The connection is gone."""
        self._refusals.pop(session, None)

    def _topic_changed(self, topic: Topic, change: Change) -> None:
        if change == "created":
            named = list(self._named.get(topic.name, ()))
            if named:
                self._log.slices.later(partial(self._retry_all, named))

    def _retry_all(self, subscriptions: list[Subscription]) -> None:
        again = (partial(self._retry, subscription) for subscription in subscriptions)
        self._log.slices.call_each("the end of a wait", again)

    def _retry(self, subscription: Subscription) -> None:
        session = self._take(subscription)
        if session is not None:
            session.connection.call(session.retry, subscription)

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_later(RETRY_S, self._look)

    def _look(self) -> None:
        self._looking = False
        now = self._loop.time()
        for session, refusal in list(self._refusals.items()):
            if self._may_store(refusal, now):
                del self._refusals[session]
                text = f"its publishes were not stored, the client is to send them again: {refusal.problem}"
                session.connection.close(text, "retry")
        if self._waiting and now >= self._retry_at:
            self._retry_at = now + RETRY_LATEST_S
            self._retry_all(list(self._waiting))
        if self._refusals or self._waiting:
            self._look_later()

    def _may_store(self, refusal: Refusal, now: float) -> bool:
        """Whether it makes sense that the client sends its publishes again."""
        topic = self._log.catalog.get(refusal.topic)
        partition = refusal.partition
        if partition is None:
            return topic is not None or now - refusal.since >= RETRY_LATEST_S
        if topic is not partition.topic:
            return True  # it was deleted: the next publish makes it again, or is refused for that reason
        if isinstance(partition.error, ReadOnly):
            return False  # until a restart
        if partition.committed_seq > refusal.committed_seq or now - refusal.since >= RETRY_LATEST_S:
            return True
        return isinstance(refusal.problem, DiskFull) and self._has_space(partition, now)

    def _has_space(self, partition: Partition, now: float) -> bool:
        """Whether a full disk has ended; believed once in a while only, as quotas may say otherwise."""
        if now - self._space_seen.get(partition, -RETRY_LATEST_S) < RETRY_LATEST_S:
            return False
        if self._log.files.free_bytes(self._log.data_dir) < SPACE_BYTES:
            return False
        self._space_seen[partition] = now
        return True

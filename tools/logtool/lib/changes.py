"""Changes of a log: through its server when one is running, else on the files, under the directory's lock."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_from_bytes

from engine import Inbox
from engine.config import EngineConfig
from engine.errors import EngineError, UnknownTopic
from engine.files.system import SystemFiles
from engine.reader import read_version
from engine.state.writer_ledger import STAGED, Ledger
from tools.logtool.cli import Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, files_or_admin
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import bytes_fields

if TYPE_CHECKING:
    from engine import Partition
    from engine.positions import Position
    from engine.state.topic_entries import Topic


def topic_path(name: bytes) -> str:
    """The admin API's path of a topic."""
    return f"/v1/topics/{quote_from_bytes(name, safe='')}"


def _kafka_path(name: str, topic: bytes, action: str = "") -> str:
    return f"/v1/groups/{quote(name, safe='')}{action}?protocol=kafka&topic={quote_from_bytes(topic, safe='')}"


@dataclass(frozen=True, slots=True)
class ServerChanges:
    """Changes through a running server."""

    admin: Admin

    def create(self, name: bytes, partitions: int, config: Mapping[str, str]) -> None:
        """Makes a topic. Raises Failure."""
        body = {**bytes_fields("name", name), "partitions": partitions, "config": dict(config)}
        self.admin.call("POST", "/v1/topics", body)

    def configure(self, name: bytes, changes: Mapping[str, str]) -> None:
        """Changes settings of a topic. Raises Failure."""
        self.admin.call("PATCH", topic_path(name), {"config": dict(changes)})

    def trim(self, name: bytes, partition: int, before: int) -> int:
        """Raises the start of the log; how many segments go. Raises Failure."""
        answer = self.admin.call("POST", f"{topic_path(name)}/trim", {"partition": partition, "before": before})
        return int(answer.get("segments_removed", 0))

    def delete(self, name: bytes) -> None:
        """Deletes a topic. Raises Failure."""
        self.admin.call("DELETE", topic_path(name))

    def drop_session(self, uuid: str) -> None:
        """Removes a session of a JSON streaming client. Raises Failure."""
        self.admin.call("DELETE", f"/v1/sessions/{quote(uuid, safe='')}")

    def abandon_batch(self, writer: str, batch: int) -> None:
        """Gives up the rest of a sink's batch. Raises Failure."""
        self.admin.call("POST", f"/v1/commits/{quote(writer, safe='')}/abandon", {"batch": batch})

    def reset_subscription(self, number: int, next_offset: int) -> None:
        """Lets a subscription go on somewhere else. Raises Failure."""
        self.admin.call("POST", f"/v1/subscriptions/{number}/reset", {"next_offset": next_offset})

    def pause_subscription(self, number: int, is_paused: bool) -> None:
        """Has a subscription deliver nothing, or go on. Raises Failure."""
        self.admin.call("POST", f"/v1/subscriptions/{number}/{'pause' if is_paused else 'resume'}")

    def delete_subscription(self, number: int) -> None:
        """Removes a subscription. Raises Failure."""
        self.admin.call("DELETE", f"/v1/subscriptions/{number}")

    def reset_kafka_group(self, name: str, topic: bytes, next_offsets: Mapping[int, int]) -> None:
        """Lets a group of Kafka's consumers go on somewhere else. Raises Failure."""
        for index, offset in next_offsets.items():
            self.admin.call("POST", _kafka_path(name, topic, "/reset"), {"to": offset, "partition": index})

    def delete_kafka_group(self, name: str, topic: bytes) -> None:
        """Forgets what a group of Kafka's consumers has committed in a topic. Raises Failure."""
        self.admin.call("DELETE", _kafka_path(name, topic))

    def create_group(self, name: bytes, topic: bytes, start: Position) -> None:
        """Makes a group of HTTP consumers. Raises Failure."""
        body = {**bytes_fields("name", name), **bytes_fields("topic", topic), "from": start.text}
        self.admin.call("POST", "/v1/groups", body)

    def redrive(self, number: int, source: bytes | None, target: bytes | None, limit: int | None) -> int:
        """Appends dead letters of a subscription once more; how many. Raises Failure."""
        body: dict[str, Any] = {} if limit is None else {"limit": limit}
        body |= bytes_fields("from", source) if source is not None else {}
        body |= bytes_fields("to", target) if target is not None else {}
        return int(self.admin.call("POST", f"/v1/subscriptions/{number}/redrive", body)["redriven"])

    def append(self, name: bytes, values: Sequence[bytes], qos0: bool) -> None:
        """Appends records to partition 0 of a topic, which is made when it is missing. Raises Failure."""
        body = {"records": [bytes_fields("value", value) for value in values], "qos0": qos0}
        self.admin.call("POST", f"{topic_path(name)}/records", body)


class FileChanges:
    """Changes on the files: this process holds the directory while it lasts."""

    def __init__(self, data_dir: Path, timeout_s: float) -> None:
        """Opens the log.

        Raises:
            EngineError: no data directory, in use, or not readable.
        """
        from engine import Log

        read_version(SystemFiles(), data_dir)
        self._inbox = Inbox()
        self._timeout_s = timeout_s
        # Nobody reads beside us through the engine: what is removed may go at once.
        self._log = Log.open(data_dir, EngineConfig(retention_grace_ms=0), self._inbox.call_soon_threadsafe)

    def close(self) -> None:
        """Makes everything durable and lets go of the directory."""
        self._inbox.close(self._log)

    def _durable(self, change: Callable[[Callable[[EngineError | None], None]], Any]) -> None:
        outcome: list[EngineError | None] = []
        change(outcome.append)
        self._inbox.run_until(lambda: bool(outcome), self._timeout_s)
        if outcome[0] is not None:
            raise outcome[0]

    def _topic(self, name: bytes) -> Topic:
        topic = self._log.catalog.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name.decode('utf-8', 'backslashreplace')!r}")
        return topic

    def _opened(self, topic: Topic, index: int) -> Partition:
        partition = self._log.partition(topic, index)
        ready: list[bool] = []
        partition.when_open(lambda: ready.append(True))
        self._inbox.run_until(lambda: bool(ready), self._timeout_s)
        if partition.error is not None:
            raise partition.error
        return partition

    def create(self, name: bytes, partitions: int, config: Mapping[str, str]) -> None:
        """Makes a topic. Raises EngineError."""
        catalog = self._log.catalog
        self._durable(lambda done: catalog.create(name, partition_count=partitions, settings=config, on_durable=done))

    def configure(self, name: bytes, changes: Mapping[str, str]) -> None:
        """Changes settings of a topic. Raises EngineError."""
        topic = self._topic(name)
        self._durable(lambda done: self._log.catalog.configure(topic, changes, done))

    def trim(self, name: bytes, partition: int, before: int) -> int:
        """Raises the start of the log; how many segments go. Raises EngineError."""
        opened = self._opened(self._topic(name), partition)
        segments = opened.trim(before)
        self._log.housekeeping.clean()
        return segments

    def delete(self, name: bytes) -> None:
        """Deletes a topic. Raises EngineError."""
        topic = self._topic(name)
        self._durable(lambda done: self._log.catalog.delete(topic, done))
        self._inbox.run_until(lambda: topic.id not in self._log.catalog.tombstones, self._timeout_s)  # files removed

    def abandon_batch(self, writer: str, batch: int) -> None:
        """Gives up the rest of a sink's batch, which the caller has found incomplete. Raises EngineError."""
        ledger = Ledger(self._log.state)
        entry = ledger.get(writer)
        if entry is None or entry.batch != batch or entry.is_complete:
            raise Failure(errors.CONFLICT, "conflict", f"batch {batch} of {writer!r} is not an incomplete one")
        put = ledger.put(entry.given_up(self._log.now_ms()))
        self._durable(lambda done: self._log.state.submit([put], done))
        for name in entry.files:
            (self._log.data_dir / STAGED / name).unlink(missing_ok=True)

    def drop_session(self, uuid: str) -> None:
        """Removes a session of a JSON streaming client. Raises EngineError."""
        from engine.sessions.store import Sessions
        from netserver.reliably.applications import ApplicationCodec

        sessions = Sessions(self._log.state, ApplicationCodec())
        self._durable(lambda done: sessions.drop(uuid, done))

    def reset_subscription(self, number: int, next_offset: int) -> None:
        """Lets a subscription go on somewhere else. Raises EngineError."""
        from engine.cursors import documents as subscriptions

        cursors = self._log.cursors
        cursor = subscriptions.find(cursors, number)
        self._durable(lambda done: subscriptions.reset(cursors, cursor, next_offset, done))

    def pause_subscription(self, number: int, is_paused: bool) -> None:
        """Has a subscription deliver nothing, or go on. Raises EngineError."""
        from engine.cursors import documents as subscriptions

        cursor = subscriptions.find(self._log.cursors, number)
        self._durable(lambda done: self._log.cursors.pause(cursor, is_paused, done))

    def delete_subscription(self, number: int) -> None:
        """Removes a subscription. Raises EngineError."""
        from engine.cursors import documents as subscriptions

        cursor = subscriptions.find(self._log.cursors, number)
        self._durable(lambda done: self._log.cursors.delete(cursor, done))

    def reset_kafka_group(self, name: str, topic: bytes, next_offsets: Mapping[int, int]) -> None:
        """Lets a group of Kafka's consumers go on somewhere else. Raises EngineError."""
        from netserver.kafka.committed import Committed, Offsets

        places = {(self._topic(topic).id, index): Committed(offset) for index, offset in next_offsets.items()}
        self._durable(functools.partial(Offsets(self._log).commit, name, places))

    def delete_kafka_group(self, name: str, topic: bytes) -> None:
        """Forgets what a group of Kafka's consumers has committed in a topic. Raises EngineError."""
        from netserver.kafka.committed import Offsets

        self._durable(functools.partial(Offsets(self._log).remove, name, topic_id=self._topic(topic).id))

    def create_group(self, name: bytes, topic: bytes, start: Position) -> None:
        """Makes a group of HTTP consumers. Raises EngineError, Failure."""
        from engine.cursors.documents import CONSUMER_OWNER as OWNER
        from engine.partitions.extent import Extent

        cursors, found = self._log.cursors, self._topic(topic)
        if any(key.owner == OWNER for key in cursors.names.of(name)):
            text = f"there is a group {name.decode(errors='backslashreplace')!r} of HTTP consumers"
            raise Failure(errors.CONFLICT, "conflict", text)
        for index in range(found.partition_count):
            partition = self._opened(found, index)
            after_seq = min(start.resolve(Extent(partition)) - 1, partition.committed_seq)
            create = functools.partial(cursors.create, OWNER, partition, after_seq=after_seq, name=name)
            self._durable(lambda done, create=create: create(on_durable=done))  # type: ignore[misc]

    def redrive(self, number: int, source: bytes | None, target: bytes | None, limit: int | None) -> int:
        """Appends dead letters of a subscription once more; how many. Raises EngineError, Failure."""
        from engine.cursors import documents as subscriptions

        cursor = subscriptions.find(self._log.cursors, number)
        if source is None:
            raise Failure(errors.USAGE, "from", "--from TOPIC: the files do not say which topic has the dead letters")
        wanted = target or cursor.topic_name
        if wanted == source:
            raise Failure(errors.USAGE, "same_topic", "--from and --to are the same topic")
        dead, alive = (self._opened(self._topic(name), 0) for name in (source, wanted))
        outcome: list[tuple[int, EngineError | None]] = []
        most = 2**62 if limit is None else limit
        redrive = subscriptions.Redrive(
            self._log.cursors, number, dead, alive, most, lambda *found: outcome.append(found)
        )
        redrive.work()
        self._inbox.run_until(lambda: bool(outcome), 24 * 3600)
        count, error = outcome[0]
        if error is not None:
            raise error
        return count

    def append(self, name: bytes, values: Sequence[bytes], qos0: bool) -> None:
        """Appends records to partition 0 of a topic, which is made when it is missing. Raises EngineError."""
        from engine import COMMITTED, PENDING, outcome

        partition = self._opened(self._log.catalog.get_or_create(name), 0)
        write_batches = partition.append_many(values, qos0=qos0)
        self._inbox.run_until(lambda: outcome(write_batches)[0] != PENDING, max(self._timeout_s, 60.0))
        state, error = outcome(write_batches)
        if state != COMMITTED:
            raise error or EngineError("not stored")


@contextlib.contextmanager
def changes(settings: Settings) -> Iterator[ServerChanges | FileChanges]:
    """The way to change the log that was named; says on stderr which one it is.

    Raises:
        Failure: no server there, or one that cannot be asked. EngineError: the files cannot be opened.
    """
    admin = files_or_admin(settings)
    if admin is not None:
        admin.text("/healthz")
        settings.output.detail(f"through the server at {admin.url}")
        yield ServerChanges(admin)
        return
    data_dir = settings.need_directory()
    opened = FileChanges(data_dir, settings.timeout_s)
    settings.output.note(f"on the files of {data_dir}: no server is running there")
    try:
        yield opened
    finally:
        opened.close()

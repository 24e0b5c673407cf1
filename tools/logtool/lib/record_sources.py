"""Where `cat` and `tail` take records from: files, or a server over HTTP; one partition, or all of them by time."""

from __future__ import annotations

import base64
import heapq
import http.client
import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from engine.formats.record import Marks, Record
from engine.limits import KEY_BYTES_MAX
from engine.positions import LATEST, Position
from engine.reader import Loss, PartitionReader
from netserver.http.query import Filter
from tools.logtool.lib.address import Admin
from tools.logtool.lib.errors import NOT_FOUND, UNREACHABLE, Failure

POLL_S = 0.05
"""How often `tail` looks at the watermarks of files: one read of 128 bytes for each partition."""


PROGRESS_S = 0.2
"""How often a search of files says how far it is; it looks at the clock every so many records:"""
PROGRESS_RECORDS = 256
NOTES = ("the log ends before ", "records before ")
"""How remarks of a server begin that tell of no loss."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that are not there: removed, or damaged, which is a `loss`."""

    text: str
    is_loss: bool = False
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """How far a search has come, in records."""

    scanned: int
    total: int


Item = tuple[int, Record] | Gap | Scanned | None
"""(partition, record); why some are not there; how far a search is; None: nothing more for now."""


class Source(Protocol):
    """Records of one topic."""

    def records(
        self, start: Position, end: Position | None, wanted: Filter, limit: int | None, *, follow: bool
    ) -> Iterator[Item]:
        """Those from ``start`` on, up to ``end`` (None: what is committed now, or, with `follow`, without an end)."""


def newest(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Of those that are there at first only the last ``count``: of several partitions each brings so many."""
    found: deque[Item] = deque(maxlen=count)
    for item in items:
        if item is None:
            break
        if isinstance(item, tuple):
            found.append(item)
        else:
            yield item  # also how far it is
    yield from found
    yield None
    yield from items


def limited(items: Iterator[Item], limit: int | None) -> Iterator[Item]:
    """At most so many records; None: all."""
    left = limit
    for item in items:
        yield item
        if left is not None and isinstance(item, tuple):
            left -= 1
            if not left:
                return


class Files:
    """The files of a data directory."""

    def __init__(self, partitions: list[PartitionReader]) -> None:
        self._partitions = partitions

    def records(
        self, start: Position, end: Position | None, wanted: Filter, limit: int | None, *, follow: bool
    ) -> Iterator[Item]:
        """See `Source`. Raises Failure: the topic was deleted."""
        items = self._all(start, end, follow=follow)
        if not wanted.everything:
            total = sum(one.committed_seq + 1 - start.resolve(one) for one in self._partitions)
            items = _searched(items, wanted, total)
        return limited(items, limit)

    def _all(self, start: Position, end: Position | None, *, follow: bool) -> Iterator[Item]:
        ends = [None if follow and end is None else (end or LATEST).resolve(one) for one in self._partitions]
        nexts = [start.resolve(one) for one in self._partitions]
        yield from _beyond(start, self._partitions)
        while True:
            runs = []
            for at, partition in enumerate(self._partitions):
                stop = partition.committed_seq + 1
                stop = stop if ends[at] is None else min(stop, ends[at] or 0)
                if nexts[at] < stop:
                    runs.append(_Run(partition, nexts[at], stop))
                    nexts[at] = stop
            yield from runs[0] if len(runs) == 1 else _by_time(runs)
            if all(stop is not None and nexts[at] >= stop for at, stop in enumerate(ends)):
                return
            yield None
            self._wait()

    def _wait(self) -> None:
        """Until something more is committed. Raises Failure when the topic was deleted."""
        seen = [partition.committed_seq for partition in self._partitions]
        while [partition.committed_seq for partition in self._partitions] == seen:
            time.sleep(POLL_S)
            for partition in self._partitions:
                if partition.segments and not partition.directory.exists():
                    raise Failure(NOT_FOUND, "deleted", f"{partition.directory} is gone: the topic was deleted")
                if partition.changed:
                    partition.refresh()


def _searched(items: Iterator[Item], wanted: Filter, total: int) -> Iterator[Item]:
    """The records that are wanted; now and then how far it is."""
    wants, scanned, due_s = wanted.wants, 0, time.monotonic() + PROGRESS_S
    for item in items:
        if isinstance(item, tuple):
            scanned += 1
            if not scanned % PROGRESS_RECORDS and time.monotonic() >= due_s:
                yield Scanned(scanned, max(scanned, total))
                due_s = time.monotonic() + PROGRESS_S
            if not wants(item[1]):
                continue
        yield item
    yield Scanned(scanned, max(scanned, total))


def _beyond(start: Position, partitions: list[PartitionReader]) -> Iterator[Gap]:
    """What is said of a number that is not there."""
    if start.kind != "seq" or not start.value:
        return
    first = min(partition.log_start for partition in partitions)
    last = max(partition.committed_seq for partition in partitions)
    if start.value < first:
        yield Gap(f"records before {first} are no longer there", is_note=True)
    if start.value > last + 1:
        yield Gap(f"the log ends before {start.value}: its last record is {last}", is_note=True)


class _Run:
    """A range of one partition."""

    def __init__(self, partition: PartitionReader, first_seq: int, end_seq: int) -> None:
        self._partition = partition
        self._next_seq = first_seq
        self._end_seq = end_seq

    def __iter__(self) -> Iterator[Item]:
        while True:
            gap = self._removed()
            if gap is not None:
                yield gap
            try:
                yield from self._from(self._next_seq)
                return
            except FileNotFoundError:  # a segment that retention removed
                self._partition.refresh()
                if self._partition.log_start <= self._next_seq:
                    raise

    def _from(self, first_seq: int) -> Iterator[Item]:
        index = self._partition.index
        for item in self._partition.records(first_seq, self._end_seq):
            if isinstance(item, Loss):
                self._next_seq = item.damage.last_seq + 1
                yield Gap(item.text, is_loss=True)
            else:
                self._next_seq = item.seq + 1
                yield index, item

    def _removed(self) -> Gap | None:
        log_start, first_seq = self._partition.log_start, self._next_seq
        if log_start <= first_seq:
            return None
        self._next_seq = log_start
        return Gap(f"records {first_seq} to {log_start - 1} were removed meanwhile")


def _by_time(runs: list[_Run]) -> Iterator[Item]:
    return heapq.merge(*runs, key=lambda item: item[1].timestamp_ms if isinstance(item, tuple) else 0)


class Served:
    """A server, over HTTP."""

    def __init__(self, admin: Admin, topic: bytes, partition: int | None) -> None:
        self._admin = admin
        self._path = f"/v1/topics/{quote(topic, safe='')}/records"
        self._partition = partition

    def records(
        self, start: Position, end: Position | None, wanted: Filter, limit: int | None, *, follow: bool
    ) -> Iterator[Item]:
        """See `Source`. Raises Failure: the server is gone, refuses, or cannot read on."""
        fields: dict[str, Any] = {"from": start.text, "to": end.text if end is not None else None}
        fields |= {"partition": self._partition, "limit": limit, "follow": "true" if follow else None}
        fields |= {"key": wanted.key, "contains": wanted.contains}
        asked = [(name, value) for name, value in fields.items() if value is not None]
        if not wanted.everything:
            asked.append(("progress", "true"))
        asked += [("where", f"{_pointer(steps)}={value}") for steps, value in wanted.where]
        try:
            for line in self._admin.lines(f"{self._path}?{urlencode(asked)}"):
                yield self._item(line)
        except http.client.HTTPException as error:
            raise Failure(UNREACHABLE, "unreachable", f"{self._admin.url} broke the answer off ({error!r})") from error

    def _item(self, line: bytes) -> Item:
        if not line.strip():
            return None
        found = json.loads(line)
        if "error" in found:
            raise Failure(UNREACHABLE, "server", str(found["error"]))
        if str(found.get("remark", "")).startswith(NOTES):
            return Gap(found["remark"], is_note=True)
        if "progress" in found:
            return Scanned(found["progress"]["scanned"], found["progress"]["total"])
        if "remark" in found:
            numbers = f"records {found['first_offset']} to {found['last_offset']}"
            text = f"partition {found['partition']}: {numbers}: {found['remark']}"
            return Gap(text, is_loss="removed" not in found["remark"])
        return record_of(found)


def record_of(found: dict[str, Any]) -> tuple[int, Record]:
    """The partition and the record of a line of JSON."""
    listed = found.get("headers", ())
    headers = tuple(part for header in listed for part in (_bytes(header, "name"), _bytes(header, "value")))
    key, value = _bytes(found, "key"), _bytes(found, "value")
    is_usual = 0 < len(key) <= KEY_BYTES_MAX or not found.keys() & {"key", "key_base64"}
    null_headers = tuple(at for at, header in enumerate(listed) if _is_null(header))
    marks = Marks(_is_null(found), None if is_usual else key, null_headers)
    key = key if is_usual else b""
    return found["partition"], Record(
        found["offset"], found["timestamp_ms"], key, value, headers, marks=marks if marks != Marks() else None
    )


def _is_null(found: dict[str, Any]) -> bool:
    return "value" in found and found["value"] is None


def _pointer(steps: tuple[str, ...]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def _bytes(found: dict[str, Any], name: str) -> bytes:
    encoded = found.get(f"{name}_base64")
    return base64.b64decode(encoded) if encoded is not None else str(found.get(name) or "").encode()

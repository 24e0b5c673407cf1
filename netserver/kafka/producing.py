"""Produce: records into the log, and the answers that wait until they are on disk.

The records of a request are checked first, all of them, by a thread where that may take long; then each partition's are
appended or refused for itself. An answer goes out when everything of its request is stored or has failed: in the order
of the requests, as everything on a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import EngineError
from netserver.access.table import right_of

from .appending import append_in_steps, append_records
from .checking import Records, check_records, is_packed
from .errors import Code
from .limits import (
    APPENDED_AT_ONCE_PARTS,
    APPENDED_AT_ONCE_US,
    REQUEST_UNPACKED_BYTES_MAX,
    UNPACKED_BYTES_MAX,
)
from .record_errors import RecordsError
from .schema import Values
from .transactions import TransactionError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterator

    from engine.partitions.partition import Partition
    from netserver.shell.connection import Connection
    from netserver.shell.outstanding import Outstanding

    from .codec import Head, Request
    from .listener_state import ListenerState

PUBLISH: Final = right_of("kafka", "PRODUCE")
ACKS: Final = (-1, 0, 1)
"""None, or when it is on disk: 1 promises no less than all here, as there is one replica."""


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a request: what was found of its records, and what becomes of them."""

    name: str
    index: int
    found: Records | RecordsError | Code
    result: Values


class Prepared(NamedTuple):
    """A request whose records were looked at.

    Attributes:
        answer: what it is told, filled in by and by.
        told: set when it is all there, where that is too much to be put together at once.
    """

    head: Head
    acks: int
    transactional_id: str | None
    parts: list[Part]
    answer: Values
    told: asyncio.Future[None] | None = None


class Answer(NamedTuple):
    """Stands behind everything of a request in the queue of answers."""

    prepared: Prepared


def prepare(shared: ListenerState, request: Request) -> Prepared:
    """Check all records of a request; also on a thread."""
    body = request.body
    refused: Code | None = None
    if body["acks"] not in ACKS:
        refused = Code.INVALID_ACKS
    transactional_id = body["transactional_id"]
    parts: list[Part] = []
    topics: list[Values] = []
    room_bytes = REQUEST_UNPACKED_BYTES_MAX
    for topic in body["topics"]:
        name = topic["name"]
        record_bytes_max = shared.record_bytes_max(name)
        results: list[Values] = []
        for partition in topic["partitions"]:
            result: Values = {"index": partition["index"], "error": Code.NONE}
            records = partition["records"]
            found = refused or _checked(
                records, record_bytes_max, room_bytes, is_transactional=transactional_id is not None
            )
            if is_packed(records):
                room_bytes -= found.size_bytes if isinstance(found, Records) else UNPACKED_BYTES_MAX
            parts.append(Part(name, partition["index"], found, result))
            results.append(result)
        topics.append({"name": name, "partitions": results})
    return Prepared(request.head, body["acks"], transactional_id, parts, {"topics": topics})


def _checked(
    records: memoryview, record_bytes_max: int, room_bytes: int, *, is_transactional: bool
) -> Records | RecordsError | Code:
    try:
        found = check_records(records, record_bytes_max, max(1, min(room_bytes, UNPACKED_BYTES_MAX)))
    except RecordsError as error:
        return error
    if found.is_transactional != is_transactional or (is_transactional and found.producer_id < 0):
        return Code.INVALID_RECORD
    if is_transactional:
        found.keep()
    return found


def is_large(request: Request, size_bytes: int, at_once_bytes: int, unpacked_at_once_bytes: int) -> bool:
    """Whether its records are better checked by a thread."""
    if size_bytes > at_once_bytes:
        return True
    if size_bytes <= unpacked_at_once_bytes:
        return False
    return any(is_packed(partition["records"]) for topic in request.body["topics"] for partition in topic["partitions"])


class Producer:
    """The publishing of one connection."""

    def __init__(self, shared: ListenerState, connection: Connection, outstanding: Outstanding) -> None:
        self._shared = shared
        self._connection = connection
        self._outstanding = outstanding

    def closed_partition(self, part: Part) -> Partition | None:
        """Its partition, if that has to be opened first."""
        try:
            partition = self._shared.partition(part.name, part.index)
        except EngineError:  # which appending meets again
            return None
        return None if partition is None or partition.is_open else partition

    def append(self, prepared: Prepared) -> Iterator[None]:
        """Append what can be appended, step by step; the answer comes through the queue of answers."""
        for part in prepared.parts:
            if prepared.transactional_id is None:
                code, text = yield from self._append(part, prepared.acks)
            else:
                code, text = self._gather(part, prepared.transactional_id), None
            if code:
                part.result.update({"error": code, "message": text})
            yield
        self._outstanding.add_done(Answer(prepared))

    def _gather(self, part: Part, transactional_id: str) -> Code | int:
        """Put the records of a partition into a transaction; why not, if not. They have no offset before its commit."""
        if not self._connection.visitor.check("PRODUCE", PUBLISH, part.name.encode()):
            return Code.TOPIC_FORBIDDEN
        if not isinstance(part.found, Records):
            return part.found.code if isinstance(part.found, RecordsError) else part.found
        place = self._shared.place(part.name, part.index)
        if place is None:
            return Code.UNKNOWN_TOPIC
        try:
            self._shared.transactions.gather(transactional_id, place, part.found)
        except TransactionError as error:
            return error.code
        return Code.NONE

    def _append(self, part: Part, acks: int) -> Generator[None, None, tuple[int, str | None]]:
        """Append the records of a partition; else why not."""
        if not self._connection.visitor.check("PRODUCE", PUBLISH, part.name.encode()):
            return Code.TOPIC_FORBIDDEN, None
        found = part.found
        if isinstance(found, RecordsError):
            return found.code, found.text
        if isinstance(found, Code):
            return found, None
        try:
            partition = self._shared.partition(part.name, part.index)
            if partition is None:
                return Code.UNKNOWN_TOPIC, None
            if found.work_us <= APPENDED_AT_ONCE_US:
                appended = append_records(partition, found, self._outstanding, qos0=not acks)
            else:
                appended = yield from append_in_steps(partition, found, self._outstanding, qos0=not acks)
        except RecordsError as error:
            return error.code, error.text
        except EngineError as error:
            return Code.STORAGE, str(error)
        part.result.update({"offset": appended.base_seq, "log_start": partition.log_start})
        for write_batch, records, size_bytes in appended.write_batches:
            self._outstanding.add(write_batch, part, size_bytes, records)
        return Code.NONE, None


def takes_long(prepared: Prepared) -> bool:
    """Whether appending it all in one turn would make others wait."""
    return (
        len(prepared.parts) > APPENDED_AT_ONCE_PARTS
        or sum(part.found.work_us for part in prepared.parts if isinstance(part.found, Records)) > APPENDED_AT_ONCE_US
    )


def failed(part: Part, error: Exception) -> None:
    """A round has not stored it."""
    part.result.update({"error": Code.STORAGE, "offset": -1, "log_start": -1, "message": str(error)})


def has_failed(prepared: Prepared) -> bool:
    """Whether anything of a request was not stored."""
    return any(part.result["error"] for part in prepared.parts)

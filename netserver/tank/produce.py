"""Produce requests: bundles into the log, and the answers that wait for them.

A request is read whole and all its bundles are checked, those of a large one on a thread, before anything of it is
written. The usual shape, bundles for one partition (the C++ library gathers those that wait to be sent), is appended
straight from the read buffer by ``dispatch.produce_run``, many frames at a time; every other one is prepared and
executed on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from engine.formats.bundle import BundleInfo, check_bundle
from engine.formats.record import BundleError
from netserver.access.table import right_of

from .dispatch import ProduceCursor, parts_room, produce_run
from .errors import FormatError
from .limits import (
    BUNDLE_OVERHEAD_BYTES,
    BUNDLE_RECORDS_MAX,
    BUNDLE_UNPACKED_BYTES_MAX,
    SEQUENCE_JUMP_MAX,
    SEQUENCE_MAX,
)
from .messages import ProduceCode, ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from .requests import decode_request
from .responses import encode_response

if TYPE_CHECKING:
    from asyncio import Future

    from engine.partitions.partition import Partition
    from engine.state.topic_entries import Topic
    from netserver.shell.connection import Connection
    from netserver.shell.outstanding import Outstanding

    from .listener_state import ListenerState

PUBLISH: Final = right_of("tank", "PRODUCE")


class Run:
    """Answers to consecutive requests, all of whose bundles are in one write batch of one partition."""

    __slots__ = ("answers", "partition")

    def __init__(self, partition: Partition, answers: bytearray) -> None:
        self.partition = partition
        self.answers = answers

    def settle(self, error: Exception | None) -> bytes | bytearray:
        """The frames to send."""
        if error is not None:
            answers = self.answers
            at = 0
            while at < len(answers):
                end = at + 5 + int.from_bytes(answers[at + 1 : at + 5], "little")
                answers[at + 9 : end] = bytes((ProduceCode.IO_ERROR,)) * (end - at - 9)
                at = end
        return self.answers


class Answer:
    """The answer to one request of any shape: a code for each partition, some of which wait for their write batch."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.codes = bytearray()
        self.pending = 0

    def frame(self) -> bytes:
        """The whole answer."""
        return encode_response(ProduceResponse(self.request_id, bytes(self.codes)))


class Part:
    """One partition of such a request: where its code stands."""

    __slots__ = ("answer", "partition", "position")

    def __init__(self, partition: Partition, answer: Answer) -> None:
        self.partition = partition
        self.answer = answer
        self.position = len(answer.codes)

    def settle(self, error: Exception | None) -> bytes:
        """The frame to send, empty until the last part of the request is settled."""
        answer = self.answer
        if error is not None:
            answer.codes[self.position] = ProduceCode.IO_ERROR
        answer.pending -= 1
        return b"" if answer.pending else answer.frame()


class Prepared:
    """A request whose bundles are valid.

    Attributes:
        topics: the last one first, each with its partitions (None: it is not known) and what is in its bundles. They
            go one by one as they are appended: to take 65,025 entries apart at once takes 20 ms.
        closed: the partitions that have to be opened first.
    """

    __slots__ = ("closed", "is_large", "request_id", "topics")

    def __init__(self, request_id: int, *, is_large: bool = False) -> None:
        self.request_id = request_id
        self.topics: list[tuple[ProduceTopic, list[Partition | None] | None, list[BundleInfo]]] = []
        self.closed: dict[Partition, None] = {}
        self.is_large = is_large


class Producer:
    """The publishing half of a connection's session.

    Args:
        outstanding: gets each write batch with a Run or a Part as its token, or an Answer that waits for none.
    """

    def __init__(self, shared: ListenerState, connection: Connection, outstanding: Outstanding) -> None:
        self._shared = shared
        self._connection = connection
        self._outstanding = outstanding
        self._cursor = ProduceCursor()

    def run(self, data: memoryview, position: int, length: int) -> int:
        """Append the bundles of the frames from ``position`` on, while they are usual ones and for one partition.

        Returns:
            the position of the first frame that was not taken.
        """
        cursor = self._cursor
        if not cursor.open(data, position, length):
            return position
        name = bytes(data[cursor.name_start : cursor.name_end])
        topic = self._shared.topic(name)
        if topic is None or not self._connection.visitor.may(PUBLISH, name):
            return position
        partition = self._shared.partition(topic, cursor.partition_id)
        if partition is None or not partition.is_open:
            return position
        room_bytes = 0
        while not self._connection.held:
            try:
                writer = partition.writer(room_bytes)
            except EngineError:
                return position
            position, is_full, bundles, records, size_bytes, answers = produce_run(
                data, position, length, name, cursor.partition_id, writer
            )
            if bundles:
                write_batch = partition.appended(self._outstanding, size_bytes)
                self._outstanding.add(write_batch, Run(partition, answers), size_bytes, records)
            if not is_full:
                break
            assert bundles or not room_bytes, "writer() made room"
            cursor.open(data, position, length)
            room_bytes = parts_room(cursor) if cursor.parts > 1 else cursor.bundle_end - cursor.bundle_start
        return position

    def prepare(self, request: ProduceRequest) -> Prepared:
        """Check all of a request.

        Raises:
            FormatError: a bundle is not valid, or beyond the limits.
        """
        infos = check_bundles(request, [self._limit_bytes(topic.name) for topic in request.topics])
        prepared = Prepared(request.request_id)
        for _ in self._find(prepared, request, infos):
            pass
        return prepared

    def _find(self, prepared: Prepared, request: ProduceRequest, infos: list[list[BundleInfo]]) -> Iterator[None]:
        """Look for the partitions of a request, step by step."""
        for topic, found in zip(request.topics, infos, strict=True):
            known = self._topic(topic.name)
            partitions: list[Partition | None] = []
            prepared.topics.append((topic, None if known is None else partitions, found))
            for entry in topic.partitions if known is not None else ():
                assert known is not None
                partition = self._shared.partition(known, entry.partition_id)
                partitions.append(partition)
                if partition is not None and not partition.is_open:
                    prepared.closed[partition] = None
                yield
        prepared.topics.reverse()

    def prepare_on_thread(
        self, message_id: int, payload: memoryview, done: Callable[[Prepared | Exception], None]
    ) -> None:
        """Have a large request read and checked by a thread, while others have their turns.

        Args:
            payload: does not change until ``done`` is called, in the loop, with what ``prepare`` gives or raises.
        """

        def work() -> tuple[ProduceRequest, list[list[BundleInfo]]]:
            request = decode_request(message_id, payload)
            assert isinstance(request, ProduceRequest)
            return request, check_bundles(request, [self._limit_bytes(topic.name) for topic in request.topics])

        def checked(found: Future[tuple[ProduceRequest, list[list[BundleInfo]]]]) -> None:
            error = found.exception()
            if isinstance(error, Exception):
                done(error)
            else:
                self._shared.log.slices.run(prepared(*found.result()))

        def prepared(request: ProduceRequest, infos: list[list[BundleInfo]]) -> Iterator[None]:
            found = Prepared(request.request_id, is_large=True)
            try:
                yield from self._find(found, request, infos)
            except Exception as error:  # noqa: BLE001 - whatever it is, the session raises it
                done(error)
            else:
                done(found)

        self._connection.loop.run_in_executor(self._shared.checks, work).add_done_callback(checked)

    def execute(self, prepared: Prepared) -> Iterator[None]:
        """Append what can be appended, step by step; the answer comes through ``outstanding``."""
        answer = Answer(prepared.request_id)
        answer.pending = 1  # until all is appended
        refused: bytes | None = None
        while prepared.topics:
            topic, found, infos = prepared.topics.pop()
            yield
            if found is None:
                if refused != topic.name:  # neighbours of one unknown topic share a byte
                    answer.codes.append(ProduceCode.UNKNOWN_TOPIC)
                refused = topic.name
                continue
            refused = None
            for entry, partition, info in zip(topic.partitions, found, infos, strict=True):
                code = self._append(entry, partition, info, answer)
                if code is not None:
                    answer.codes.append(code)
                yield
        answer.pending -= 1
        if not answer.pending:
            self._outstanding.add_done(answer)

    def _topic(self, name: bytes) -> Topic | None:
        """The topic of this name; None also when the client may not publish to it."""
        topic = self._shared.topic(name)
        return topic if topic is not None and self._connection.visitor.check("PRODUCE", PUBLISH, name) else None

    def _limit_bytes(self, name: bytes) -> int:
        """Length of a bundle for this topic, packed and unpacked."""
        topic = self._shared.topic(name)
        record_bytes_max = 0 if topic is None else topic.config.record_bytes_max
        return max(BUNDLE_UNPACKED_BYTES_MAX, record_bytes_max) + BUNDLE_OVERHEAD_BYTES

    def _append(
        self, entry: ProducePartition, partition: Partition | None, info: BundleInfo, answer: Answer
    ) -> ProduceCode | None:
        """Append a bundle. The code, if it was refused; else its place in the answer is taken."""
        if partition is None:
            return ProduceCode.UNKNOWN_PARTITION
        first_seq = info.first_seq if info.sparse else entry.base_seq
        if not partition.is_open or partition.topic.deleting:
            return ProduceCode.IO_ERROR
        if (first_seq or info.sparse) and not 0 < first_seq - partition.last_seq <= SEQUENCE_JUMP_MAX:
            return ProduceCode.INVALID_SEQ
        if max(info.last_seq, first_seq + info.count - 1) > SEQUENCE_MAX:
            return ProduceCode.INVALID_SEQ
        bundle = entry.bundle
        try:
            write_batch = partition.append_bundle(
                bundle, 0, len(bundle), info, first_seq=entry.base_seq, waiter=self._outstanding
            )
        except EngineError:
            return ProduceCode.IO_ERROR
        part = Part(partition, answer)
        answer.codes.append(ProduceCode.WRITTEN)
        answer.pending += 1
        self._outstanding.add(write_batch, part, len(bundle), info.count)
        return None


def check_bundles(request: ProduceRequest, limits_bytes: list[int]) -> list[list[BundleInfo]]:
    """What is in the bundles, of each topic.

    Raises:
        FormatError: one is not valid, or beyond the limits.
    """
    return [
        [_check(entry, limit_bytes) for entry in topic.partitions]
        for topic, limit_bytes in zip(request.topics, limits_bytes, strict=True)
    ]


def _check(entry: ProducePartition, limit_bytes: int) -> BundleInfo:
    size_bytes = len(entry.bundle)
    if size_bytes > limit_bytes:
        raise FormatError(f"a bundle of {size_bytes} bytes, more than {limit_bytes} (setting record_bytes_max)")
    try:
        return check_bundle(entry.bundle, 0, size_bytes, limit_bytes, BUNDLE_RECORDS_MAX)
    except BundleError as error:
        raise FormatError(f"not a bundle: {error}") from None

"""One Kafka connection of the server: requests in, answers out, strictly in their order.

- A Produce is answered after its commit round; further ones are read, appended and answered behind it.
- Any other request waits for all answers before it, so that a client sees what it has published, and is answered
  before anything else is read: also a Fetch that waits for records. Clients know that, and have connections for each
  purpose.
- There is no error frame: malformed input closes the connection, and nothing of that request is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Final

from netserver.errors import ProtocolError
from netserver.limits import READ_BUFFER_BYTES
from netserver.shell.connection import ANSWERING
from netserver.shell.output_bound import OUTPUT
from netserver.shell.outstanding import Outstanding, Released

from .administration import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
)
from .apis import Key
from .call import Call
from .codec import Head, Request, decode_request, encode_response, frame_bounds
from .errors import FormatError
from .fetching import fetch
from .group_requests import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from .limits import (
    ANSWERED_AT_ONCE_PARTS,
    CHECKED_AT_ONCE_BYTES,
    FRAME_BYTES_MAX,
    PIPELINED_MAX,
    UNPACKED_AT_ONCE_BYTES,
)
from .listener_state import ListenerState
from .login import Login, sasl_authenticate, sasl_handshake
from .metadata import api_versions, metadata
from .offsets import list_offsets
from .producing import Answer, Part, Prepared, Producer, failed, has_failed, is_large, prepare, takes_long
from .quotas import fetch_pause_ms, produce_pause_ms
from .schema import Values
from .transaction_requests import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from .waiting import opened

if TYPE_CHECKING:
    from netserver.shell.connection import Connection, Services, Session

BEHIND: Final = "a request waits for earlier publishes"
PIPELINED: Final = "publishes wait for the disk"

ANSWERS: Final[dict[Key, Callable[[Call], Awaitable[Values]]]] = {
    Key.FETCH: fetch,
    Key.LIST_OFFSETS: list_offsets,
    Key.METADATA: metadata,
    Key.API_VERSIONS: api_versions,
    Key.CREATE_TOPICS: create_topics,
    Key.DELETE_TOPICS: delete_topics,
    Key.DELETE_RECORDS: delete_records,
    Key.INIT_PRODUCER_ID: init_producer_id,
    Key.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    Key.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    Key.END_TXN: end_txn,
    Key.TXN_OFFSET_COMMIT: txn_offset_commit,
    Key.DESCRIBE_CONFIGS: describe_configs,
    Key.CREATE_PARTITIONS: create_partitions,
    Key.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    Key.FIND_COORDINATOR: find_coordinator,
    Key.JOIN_GROUP: join_group,
    Key.SYNC_GROUP: sync_group,
    Key.HEARTBEAT: heartbeat,
    Key.LEAVE_GROUP: leave_group,
    Key.OFFSET_COMMIT: offset_commit,
    Key.OFFSET_FETCH: offset_fetch,
    Key.LIST_GROUPS: list_groups,
    Key.DESCRIBE_GROUPS: describe_groups,
    Key.DELETE_GROUPS: delete_groups,
    Key.SASL_HANDSHAKE: sasl_handshake,
    Key.SASL_AUTHENTICATE: sasl_authenticate,
}
"""What answers a request; PRODUCE is the session's own."""


def factory(services: Services) -> Callable[[Connection], Session]:
    """The maker of sessions for the Kafka listener."""
    shared = ListenerState(services)

    def make(connection: Connection) -> Session:
        return KafkaSession(shared, connection)

    return make


class KafkaSession:
    """See the module; ``netserver.shell.connection.Session`` says when its methods are called."""

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(self, shared: ListenerState, connection: Connection) -> None:
        self._shared = shared
        self._connection = connection
        self._outstanding = Outstanding(connection, self._released, shared.log.slices)
        self._producer = Producer(shared, connection, self._outstanding)
        self._login = Login(connection)
        self._task: asyncio.Task[None] | None = None
        self._call: Call | None = None
        self._is_done_with = False  # the request that comes again was carried out meanwhile
        self._is_ending = False

    # --- input

    def received(self, data: memoryview, length: int) -> int:
        connection = self._connection
        position = 0
        try:
            while not connection.held and connection.has_turn():
                found = frame_bounds(data, position, length)
                if found is None:
                    break
                head, end = found
                if connection.visitor.identity is None and not self._login.admits(head, end - position):
                    break
                if end > length:
                    connection.expect(end - position)
                    break
                if self._is_done_with:
                    self._is_done_with = False
                elif not self._begin(head, data[position:end]):
                    break
                position = end
        except FormatError as error:
            raise ProtocolError(str(error)) from None
        return position

    def _begin(self, head: Head, frame: memoryview) -> bool:
        """Begin with a request. False: it has to come again."""
        if head.key == Key.PRODUCE:
            return self._produce(head, frame)
        if len(self._outstanding):
            self._connection.hold(BEHIND)
            return False
        if head.key == Key.FETCH and not self._connection.writable:  # what was sent is too much for it, or its rate
            self._connection.hold(OUTPUT)
            return False
        if len(frame) > CHECKED_AT_ONCE_BYTES:
            self._later(self._read_and_answer(head, memoryview(bytes(frame))))
        else:
            request = Request(head, "", {}) if not head.is_spoken else decode_request(frame, head)
            self._later(self._answer(request))
        return True

    async def _read_and_answer(self, head: Head, frame: memoryview) -> None:
        loop = self._connection.loop
        await self._answer(await loop.run_in_executor(self._shared.checks, decode_request, frame, head))

    async def _answer(self, request: Request) -> None:
        call = self._call = Call(self._shared, self._connection, self._login, request)
        call.is_ending = self._is_ending
        body = await ANSWERS[request.head.key](call)
        if request.head.key == Key.FETCH:
            body["throttle_ms"] = fetch_pause_ms(self._connection, body)
        for piece in encode_response(request.head, body).pieces():
            self._connection.write(piece)
        if call.ends_by:
            self._connection.close(call.ends_by, "refused")

    # --- publishing

    def _produce(self, head: Head, frame: memoryview) -> bool:
        if len(frame) > CHECKED_AT_ONCE_BYTES:
            if len(frame) <= READ_BUFFER_BYTES:
                frame = memoryview(bytes(frame))  # the read buffer is used again meanwhile
            self._is_done_with = True  # so long it counts as memory of this connection
            self._later(self._read_and_append(head, frame))
            return False
        frame = memoryview(bytes(frame))
        request = decode_request(frame, head)
        if is_large(request, len(frame), CHECKED_AT_ONCE_BYTES, UNPACKED_AT_ONCE_BYTES):
            self._later(self._check_and_append(request))
            return True
        prepared = prepare(self._shared, request)
        if takes_long(prepared) or any(map(self._producer.closed_partition, prepared.parts)):
            self._later(self._open_and_append(prepared))
            return True
        for _ in self._producer.append(prepared):
            pass
        if len(self._outstanding) >= PIPELINED_MAX:
            self._connection.hold(PIPELINED)
        return True

    async def _read_and_append(self, head: Head, frame: memoryview) -> None:
        def work() -> Prepared:
            return prepare(self._shared, decode_request(frame, head))

        await self._work_and_append(work)

    async def _check_and_append(self, request: Request) -> None:
        await self._work_and_append(partial(prepare, self._shared, request))

    async def _work_and_append(self, work: Callable[[], Prepared]) -> None:
        """Unpack and check on a thread, and append: few at a time, and when the disk keeps up."""
        shared = self._shared
        async with shared.checked:
            await shared.disk_room.wait()
            await self._open_and_append(await self._connection.loop.run_in_executor(shared.checks, work))

    async def _open_and_append(self, prepared: Prepared) -> None:
        """Append, in several turns if there is much of it. Who has lost its rights meanwhile is closed by then."""
        call = Call(self._shared, self._connection, self._login, Request(prepared.head, "", {}))
        if prepared.acks and len(prepared.parts) > ANSWERED_AT_ONCE_PARTS:
            prepared = prepared._replace(told=self._connection.loop.create_future())
        async for part in call.each(prepared.parts):
            if (partition := self._producer.closed_partition(part)) is not None:
                await asyncio.gather(opened(partition), return_exceptions=True)
        async for _ in call.each(self._producer.append(prepared)):
            pass
        if prepared.told is not None:  # and nothing behind it is read before
            await prepared.told
            topics = ((topic["name"], topic["partitions"]) for topic in prepared.answer["topics"])
            self._write_answer(prepared, {"topics": await call.encoded_by_topic(topics)})

    def _write_answer(self, prepared: Prepared, answer: Values) -> None:
        answer["throttle_ms"] = produce_pause_ms(self._connection)
        self._connection.write(encode_response(prepared.head, answer))

    def _released(self, released: Released) -> None:
        frames: list[bytearray] = []
        for token, error in released:
            if isinstance(token, Part):
                if error is not None:
                    failed(token, error)
                continue
            assert isinstance(token, Answer)
            prepared = token.prepared
            if prepared.told is not None:
                prepared.told.set_result(None)
            elif prepared.acks:
                prepared.answer["throttle_ms"] = produce_pause_ms(self._connection)
                frames.append(encode_response(prepared.head, prepared.answer))
            elif has_failed(prepared):  # nothing else can tell it
                self._connection.close("a publish that asks for no answer has failed", "refused")
        if frames:
            self._connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if len(self._outstanding) * 2 <= PIPELINED_MAX:
            self._connection.release(PIPELINED)
        if not len(self._outstanding):
            self._connection.release(BEHIND)
        self._settled()

    # --- requests that take a while

    def _later(self, work: Coroutine[None, None, None]) -> None:
        """Do this, and read nothing more until it is done."""
        self._connection.hold(ANSWERING)
        self._task = self._connection.loop.create_task(work)
        self._task.add_done_callback(self._was_done)

    def _was_done(self, task: asyncio.Task[None]) -> None:
        self._task = self._call = None
        if task.cancelled():
            return
        self._connection.call(self._look_at, task)
        self._connection.release(ANSWERING)
        self._settled()

    def _look_at(self, task: asyncio.Task[None]) -> None:
        try:
            task.result()
        except FormatError as error:
            raise ProtocolError(str(error)) from None

    # --- life

    def resume_output(self) -> None:
        """Nothing waits for it: a request is read when there is room for its answer."""

    def eof(self) -> None:
        self._end()

    def drain(self) -> None:
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        if self._call is not None:
            self._call.is_ending = True
            self._call.on_ending()
        self._settled()

    def closed(self) -> None:
        self._login.end()
        self._outstanding.close()
        if self._task is not None:
            self._task.cancel()

    def idle(self) -> bool:
        return not len(self._outstanding) and self._task is None

    def _settled(self) -> None:
        if self._is_ending and self.idle():
            self._connection.close()

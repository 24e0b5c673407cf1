"""Sessions: numbered messages to clients that come and go, each durable together with the state it was made from.

A session has a name (`uuid`), the state of some application and a queue of messages with ids 1, 2, 3 ... A message is
made by a *transformer*, a pure function of the state that gives the message and the next state; message, id and next
state become durable together or not at all, and only then may the message be sent. It stays until it is acknowledged,
so that whoever comes back after a break gets the same messages again. What state and messages are is the business of
the application; a `SessionCodec` turns them into values that can be stored.

Messages that are made together (`put_many`) are stored together, as one *block* that also holds the state after them;
blocks of many sessions share one round of the store. Keys, values and what happens to damaged ones:
engine/sessions/records.py.

A session whose owner (its connection) has gone is removed when the expiry time has passed, by the monotonic clock. When
the store is opened again no session has an owner, and each has its full time.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeAlias, cast

from engine.errors import Corrupt, EngineError, LimitReached, NotStored
from engine.limits import SESSION_REMOVALS_MAX
from engine.sessions.records import (
    HEAD,
    PREFIX,
    block_key,
    is_head,
    put_block,
    put_head,
    read_sessions,
    session_key,
    stored_size,
)
from engine.sessions.types import (
    M,
    ManyTransformer,
    OnPut,
    OutOfOrderAck,
    Owner,
    S,
    SessionCodec,
    SessionConfig,
    SessionFull,
    SessionInfo,
    SessionReplaced,
    Transformer,
    UnknownMessage,
    UnknownSession,
)
from engine.state.store import Delete, KeyOp, Put, StateStore

LAST_ID = 0xFFFF_FFFF  # ids are unsigned 32-bit integers

Staged: TypeAlias = dict[bytes, KeyOp]  # by key: of several changes of a key the last one counts
OnDone: TypeAlias = Callable[[EngineError | None], None]


class _Block(Generic[S]):
    """A block in memory: its ids and size, and until it is durable the state before it, for going back."""

    __slots__ = ("before", "dropped", "durable", "first_id", "last_id", "size_bytes")

    def __init__(self, first_id: int, last_id: int, size_bytes: int, before: S | None, durable: bool) -> None:
        self.first_id = first_id
        self.last_id = last_id
        self.size_bytes = size_bytes
        self.before = before
        self.durable = durable
        self.dropped = False


class _Session(Generic[S]):
    __slots__ = (
        "base", "blocks", "durable", "incarnation", "key", "last", "owner", "staged", "start", "state", "stored_bytes",
        "uuid",
    )  # fmt: skip

    def __init__(self, uuid: str, key: bytes, incarnation: int, state: S) -> None:
        self.uuid = uuid
        self.key = key
        self.incarnation = incarnation
        self.start = state
        self.state = state
        self.last = 0  # id of the last message made
        self.durable = 0  # id of the last message that is durable
        self.base = 0  # highest id acknowledged
        self.blocks: list[_Block[S]] = []
        self.stored_bytes = 0
        self.owner: Owner | None = None
        self.staged: Staged | None = None  # changes that go with the next submission

    def stage(self, ops: Iterable[KeyOp]) -> None:
        if self.staged is None:
            self.staged = {}
        self.staged.update((op.key, op) for op in ops)

    def unstage(self) -> Staged:
        ops, self.staged = self.staged or {}, None
        return ops

    def block_key(self, first_id: int) -> bytes:
        return block_key(self.key, self.incarnation, first_id)

    def delete_blocks(self, blocks: Sequence[_Block[S]]) -> list[KeyOp]:
        return [Delete(self.block_key(block.first_id)) for block in blocks]


class Sessions(Generic[S, M]):
    """All sessions over one store. Called by the owner thread; callbacks come on it too.

    Args:
        store: keeps them; everything under the prefix ``s/`` is theirs.
        codec: stores states and messages.
        config: bounds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: StateStore,
        codec: SessionCodec[S, M],
        config: SessionConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or SessionConfig()
        self.stored_bytes = 0
        self.registered = 0
        self.replays = 0
        self.expired = 0
        self.damaged = 0
        self._store = store
        self._codec = codec
        self._clock = clock
        self._sessions: dict[str, _Session[S]] = {}
        self._leaving: dict[str, float] = {}  # deadlines, in order
        self._dirty: dict[str, None] = {}  # sessions with staged changes, in order
        self._garbage: dict[bytes, None] = {}  # keys to remove
        self._incarnation = 0
        self._load()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._sessions

    def __iter__(self) -> Iterator[SessionInfo[S]]:
        return (self.info(uuid) for uuid in list(self._sessions))

    # --- the interface of the specification, and the same for many messages at once

    def register(self, uuid: str, state: S, owner: Owner | None = None, on_done: OnDone | None = None) -> None:
        """Makes session `uuid`, again if it is there: ids begin at 1 again, its messages are forgotten.

        Without `on_done` it becomes durable together with its first message (or within a second), which saves a
        round before the first message can be sent.

        Raises:
            LimitReached: there are as many sessions as there may be.
        """
        old = self._sessions.get(uuid)
        if old is None and len(self._sessions) >= self.config.sessions_max:
            raise LimitReached(f"Too many sessions ({self.config.sessions_max}); try again later")
        self._incarnation += 1
        session = _Session(uuid, session_key(uuid), self._incarnation, state)
        self._garbage.pop(session.key + HEAD, None)
        if old is not None:
            session.stage(self._forget(old))  # its own value too, which the new one then sets
        session.stage([self._head(session)])
        self._sessions[uuid] = session
        self.registered += 1
        self._own(session, owner)
        if old is not None and old.owner is not None and old.owner is not owner:
            old.owner.session_lost(uuid)
        self._dirty[uuid] = None
        if on_done is not None:
            self._submit(session, None, on_done)

    def resume(self, uuid: str, message_id: int, owner: Owner | None = None) -> None:
        """`owner` has the session now and everything up to `message_id`; its clock stops.

        Raises:
            UnknownSession, UnknownMessage, OutOfOrderAck
        """
        self.ack(uuid, message_id)
        session = self._sessions[uuid]
        before = session.owner
        self._own(session, owner)
        if session.durable > message_id:
            self.replays += 1
        if before is not None and before is not owner:
            before.session_lost(uuid)

    def disconnect(self, uuid: str, owner: Owner | None = None) -> None:
        """`owner` has gone: the session expires unless somebody resumes it. From another than its owner: no effect.

        Raises:
            UnknownSession
        """
        session = self._find(uuid)
        if session.owner is owner:
            self._own(session, None)

    def put(self, uuid: str, transformer: Transformer[S, M], on_done: OnPut[M]) -> int:
        """Makes one message: see put_many()."""

        def once(state: S, limit: int) -> tuple[Sequence[M], S]:
            message, after = transformer(state)
            return [message], after

        return self.put_many(uuid, once, 1, on_done)

    def put_many(self, uuid: str, transformer: ManyTransformer[S, M], limit: int, on_done: OnPut[M]) -> int:
        """Makes up to `limit` messages; returns how many.

        `transformer(state, limit)` gives the messages and the state after them, as if it had made them one by one; an
        empty sequence means that there is nothing to say. Once they are durable, ``on_done(None, id of the first,
        messages)`` is called, in the order of the calls; else ``on_done(error, ...)``, and then neither these messages
        nor any put after them exist: the state is what it was before.

        Raises:
            UnknownSession
            SessionFull: too many unacknowledged messages; acknowledging makes room.
            LimitReached: the same for all sessions together, and this one holds more than its share.
        """
        session = self._find(uuid)
        if session.stored_bytes >= self.config.session_bytes_max:
            raise SessionFull(f"Too many unacknowledged messages ({session.last - session.base})")
        share_bytes = self.config.total_bytes_max // len(self._sessions)
        if self.stored_bytes >= self.config.total_bytes_max and session.stored_bytes >= share_bytes:
            raise LimitReached(f"Unacknowledged messages of all sessions take {self.stored_bytes} bytes, the limit")
        first_id = session.last + 1
        limit = min(limit, LAST_ID - session.last)
        if limit < 1:
            raise SessionFull("No message ids are left")
        before = session.state
        messages, after = transformer(before, limit)
        if not messages:
            return 0
        assert len(messages) <= limit, f"{len(messages)} messages where {limit} were asked for"
        stored = self._codec.pack_messages(messages)
        key = session.block_key(first_id)
        op = put_block(key, session.base, len(messages), stored, self._codec.pack_state(after))
        block = _Block(first_id, session.last + len(messages), stored_size(stored), before, durable=False)

        def done(error: EngineError | None) -> None:
            on_done(self._settle(session, block, error), first_id, messages)

        self._submit(session, op, done)
        session.state = after
        session.last = block.last_id
        session.blocks.append(block)
        self._count(session, block.size_bytes)
        return len(messages)

    def after(self, uuid: str, message_id: int) -> M | None:
        """The message after `message_id`, or None when there is no durable one yet. Raises as after_many()."""
        messages = self.after_many(uuid, message_id)
        return messages[0] if messages else None

    def after_many(self, uuid: str, message_id: int) -> Sequence[M]:
        """Durable messages after `message_id`: the rest of the block that holds the next one; empty when there is none.

        Raises:
            UnknownSession
            UnknownMessage: the session has not come to `message_id` yet.
            OutOfOrderAck: messages after it have been acknowledged and may be gone.
            Corrupt: they cannot be read.
        """
        session = self._find(uuid)
        if message_id > session.durable:
            raise UnknownMessage(message_id)
        if message_id < session.base:
            raise OutOfOrderAck
        if message_id == session.durable:
            return ()
        block = session.blocks[bisect_left(session.blocks, message_id + 1, key=_last_id)]
        stored = self._store.get(session.block_key(block.first_id))
        if stored is None:
            raise Corrupt(PREFIX.decode(), None, f"message {block.first_id} of session {uuid!r} is missing")
        messages = self._codec.unpack_messages(stored[2], stored[1])
        skip = message_id + 1 - block.first_id
        return messages[skip:] if skip else messages

    def ack(self, uuid: str, message_id: int) -> None:
        """Everything up to `message_id` has arrived: it may be dropped.

        Raises:
            UnknownSession
            UnknownMessage: it has not been sent (is not durable).
            OutOfOrderAck: a later one was acknowledged before.
        """
        session = self._find(uuid)
        if message_id > session.durable:
            raise UnknownMessage(message_id)
        if message_id < session.base:
            raise OutOfOrderAck
        session.base = message_id
        self._prune(session)

    # --- what servers and tools need besides

    def position(self, uuid: str) -> tuple[int, int, int]:
        """(highest id acknowledged, last durable id, last id made). Raises UnknownSession."""
        session = self._find(uuid)
        return session.base, session.durable, session.last

    def state(self, uuid: str) -> S:
        """The state after the last message made. Raises UnknownSession."""
        return self._find(uuid).state

    def info(self, uuid: str) -> SessionInfo[S]:
        """What tools show of a session. Raises UnknownSession."""
        session = self._find(uuid)
        deadline = self._leaving.get(uuid)
        left_s = None if deadline is None else max(0.0, deadline - self._clock())
        return SessionInfo(uuid, session.state, session.last, session.base, session.stored_bytes, left_s)

    def drop(self, uuid: str, on_done: OnDone | None = None) -> None:
        """Removes a session, whoever has it. Raises UnknownSession."""
        session = self._find(uuid)
        self._discard(self._forget(session), on_done)
        if session.owner is not None:
            session.owner.session_lost(uuid)

    def sweep(self) -> bool:
        """Removes sessions whose time is over and stores acknowledgements; to be called about once a second.

        Returns:
            whether there is more to do at once: one call does no more than a slice.
        """
        now = self._clock()
        ops: list[KeyOp] = []
        expired = 0
        for uuid, deadline in list(islice(self._leaving.items(), self.config.sweep_slice)):
            if deadline > now or len(ops) >= SESSION_REMOVALS_MAX:
                break
            ops += self._forget(self._sessions[uuid])
            expired += 1
        if ops:
            self._discard(ops)
        self.expired += expired
        return self.flush() or expired >= self.config.sweep_slice or len(ops) >= SESSION_REMOVALS_MAX

    def flush(self) -> bool:
        """Stores what has not been stored with a message (a slice of it); returns whether there is more."""
        if self._store.error is not None:
            return False
        for uuid in list(islice(self._dirty, self.config.sweep_slice)):
            session = self._sessions[uuid]
            self._submit(session, self._head(session), None)
        if self._garbage:
            keys = list(islice(self._garbage, self.config.sweep_slice))
            for key in keys:
                del self._garbage[key]
            self._discard([Delete(key) for key in keys])
        return bool(self._dirty or self._garbage)

    # --- inside

    def _find(self, uuid: str) -> _Session[S]:
        session = self._sessions.get(uuid)
        if session is None:
            raise UnknownSession(uuid)
        return session

    def _own(self, session: _Session[S], owner: Owner | None) -> None:
        session.owner = owner
        self._leaving.pop(session.uuid, None)
        if owner is None:
            self._leaving[session.uuid] = self._clock() + self.config.expiry_s

    def _count(self, session: _Session[S], size_bytes: int) -> None:
        session.stored_bytes += size_bytes
        self.stored_bytes += size_bytes

    def _prune(self, session: _Session[S]) -> None:
        """Drops the blocks that were acknowledged, but not the last durable one: it holds the state."""
        blocks = session.blocks
        gone = 0
        while gone + 1 < len(blocks) and blocks[gone].last_id <= session.base and blocks[gone + 1].durable:
            gone += 1
        if gone:
            session.stage(session.delete_blocks(blocks[:gone]))
            self._dirty.setdefault(session.uuid)
            self._count(session, -sum(block.size_bytes for block in blocks[:gone]))
            del blocks[:gone]

    def _forget(self, session: _Session[S]) -> list[KeyOp]:
        """Takes a session out of memory; returns the changes that take it out of the store."""
        self._leaving.pop(session.uuid, None)
        self._dirty.pop(session.uuid, None)
        del self._sessions[session.uuid]
        self.stored_bytes -= session.stored_bytes
        ops = session.unstage()
        for op in (*session.delete_blocks(session.blocks), Delete(session.key + HEAD)):
            ops[op.key] = op
        return list(ops.values())

    def _head(self, session: _Session[S]) -> Put:
        start = self._codec.pack_state(session.start)
        return put_head(session.key, session.uuid, session.incarnation, start, session.base)

    def _discard(self, ops: Sequence[KeyOp], on_done: OnDone | None = None) -> None:
        """Stores changes that belong to no session any more; removals that fail are tried again later."""

        def done(error: EngineError | None) -> None:
            if error is not None:
                self._to_garbage(ops)
            if on_done is not None:
                on_done(error)

        self._store.submit(ops, done)

    def _to_garbage(self, ops: Iterable[KeyOp]) -> None:
        keys = [op.key for op in ops if isinstance(op, Delete)]
        if any(is_head(key) for key in keys):
            in_use = {session.key + HEAD for session in self._sessions.values()}  # the name may be in use again
            keys = [key for key in keys if key not in in_use]
            keys.sort(key=is_head, reverse=True)  # blocks without a session are garbage, not the other way round
        self._garbage.update(dict.fromkeys(keys))

    def _submit(self, session: _Session[S], op: Put | None, on_done: OnDone | None) -> None:
        """Stores `op` together with everything that is staged for the session; what fails is staged again."""
        staged = session.unstage()

        def done(error: EngineError | None) -> None:
            if error is not None:
                if self._sessions.get(session.uuid) is session:
                    self._go_back(session, staged)
                else:
                    self._to_garbage(staged.values())
            if on_done is not None:
                on_done(error)

        try:
            self._store.submit([*staged.values(), op] if op is not None else list(staged.values()), done)
        except EngineError:
            session.staged = staged or None
            raise
        self._dirty.pop(session.uuid, None)

    def _go_back(self, session: _Session[S], staged: Staged) -> None:
        """A submission failed: nothing of the session that was submitted with it or after it may count.

        The later ones may still succeed, so their blocks are removed by what is staged.
        """
        blocks = session.blocks
        at = len(blocks)
        while at and not blocks[at - 1].durable:
            at -= 1
        undone = blocks[at:]
        newer = session.unstage()
        session.staged = staged
        session.stage([*session.delete_blocks(undone), *newer.values()])
        self._dirty[session.uuid] = None
        if undone:
            session.state = cast(S, undone[0].before)
            session.last = undone[0].first_id - 1
            self._count(session, -sum(block.size_bytes for block in undone))
            for block in undone:
                block.dropped = True
            del blocks[at:]

    def _settle(self, session: _Session[S], block: _Block[S], error: EngineError | None) -> EngineError | None:
        """The answer for a block: marks it durable, or says why it does not count."""
        if error is not None:
            return error
        if self._sessions.get(session.uuid) is not session:
            return SessionReplaced(f"Session '{session.uuid}' was made anew or removed")
        if block.dropped:
            return NotStored("an earlier message of the session could not be stored")
        block.before = None
        block.durable = True
        session.durable = block.last_id
        self._prune(session)
        return None

    def _load(self) -> None:
        """Takes the stored sessions; what must go of them is removed with the first flush."""
        stored = read_sessions(self._store)
        self.damaged = stored.damaged
        self._incarnation = stored.incarnation_max
        self._garbage.update(dict.fromkeys(op.key for op in stored.garbage))
        for found in stored.sessions:
            session = _Session(found.uuid, found.key, found.incarnation, self._codec.unpack_state(found.start))
            session.blocks = [_Block(b.first_id, b.last_id, b.size_bytes, None, durable=True) for b in found.blocks]
            if found.blocks:
                session.state = self._codec.unpack_state(found.blocks[-1].state)
            session.last = session.durable = found.last_id
            self._count(session, sum(block.size_bytes for block in session.blocks))
            self._sessions[session.uuid] = session
            self._own(session, None)
            if found.garbage:
                session.stage(found.garbage)
                self._dirty[session.uuid] = None
            self.ack(session.uuid, found.base)


def _last_id(block: _Block[Any]) -> int:
    return block.last_id

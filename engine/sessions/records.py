"""How sessions are stored, and what counts of that when the store is opened (see engine/sessions/store.py).

Keys and values, with H = BLAKE2b-128 of the uuid in UTF-8 (not the store's usual hash: clients choose the names, and
nobody may find two that collide):

=================  =============================================================================================
``s/`` H 00        session: [1, uuid, incarnation, state at the start, highest id acknowledged]
``s/`` H 01 >II    block (incarnation, id of the first message):
                   [highest id acknowledged, number of messages, messages, state after them]
=================  =============================================================================================

A session that is rebuilt under the same name gets another incarnation, so that nothing left of the old one can be
taken for the new one's.

Of a session that was acknowledged to its end the last block stays: it holds the state. Acknowledgements are stored with
the next block, or (in the session's own value) within a second; losing one only means that messages are kept longer.

Reading checks that the blocks of a session follow each other. Where one is missing, those after it were never sent
(its round failed, and the server died before it could remove them): they are removed. Where one is damaged, those
before it are removed too, because no message may ever change: a client that has not got beyond the damaged one is told
so, everybody else notices nothing. If it is the last one, or the session's own value, the session is gone.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import Corrupt
from engine.state.store import Delete, Put, StateStore

log = logging.getLogger(__name__)

PREFIX = b"s/"
HASH_BYTES = 16
HEAD = b"\0"
_NUMBERS = struct.Struct(">II")
BLOCK = b"\1"
FORMAT = 1
KEY_BYTES = len(PREFIX) + HASH_BYTES
# What a block costs beside its messages: key, checksum, state, LMDB's node, and the entry in memory.
BLOCK_OVERHEAD_BYTES = 160


def session_key(uuid: str) -> bytes:
    """What the keys of a session begin with."""
    return PREFIX + hashlib.blake2b(uuid.encode(), digest_size=HASH_BYTES).digest()


def block_key(key: bytes, incarnation: int, first_id: int) -> bytes:
    """The key of the block that begins with message `first_id`."""
    return key + BLOCK + _NUMBERS.pack(incarnation, first_id)


def is_head(key: bytes) -> bool:
    """Whether a key holds a session's own value."""
    return key[KEY_BYTES:] == HEAD


def put_head(key: bytes, uuid: str, incarnation: int, start: Any, base: int) -> Put:
    """Stores a session's own value: its name, the packed state at its start, the highest id acknowledged."""
    return Put(key + HEAD, [FORMAT, uuid, incarnation, start, base])


def put_block(key: bytes, base: int, count: int, messages: Any, state: Any) -> Put:
    """Stores a block of packed messages and the packed state after them."""
    return Put(key, [base, count, messages, state])


def stored_size(messages: Any) -> int:
    """About the bytes that packed messages take when stored as a block."""
    return BLOCK_OVERHEAD_BYTES + (len(messages) if isinstance(messages, bytes | str) else 8 * len(messages))


@dataclass(slots=True)
class StoredBlock:
    """A stored block; `after_damage`: something between it and the one before it could not be read."""

    first_id: int
    last_id: int
    base: int
    size_bytes: int
    state: Any
    after_damage: bool


@dataclass(slots=True)
class StoredSession:
    """A stored session with the blocks that count; states as they were packed.

    What is in `garbage` must go, but only together with a change that stores `base`, because that may be known from
    nothing else.
    """

    uuid: str
    key: bytes
    incarnation: int
    start: Any
    base: int
    blocks: list[StoredBlock] = field(default_factory=list)
    garbage: list[Delete] = field(default_factory=list)

    @property
    def last_id(self) -> int:
        """Id of the last message."""
        return self.blocks[-1].last_id if self.blocks else 0


@dataclass(slots=True)
class Contents:
    """What a store holds: the sessions that can go on, what is to be removed, and two figures."""

    sessions: list[StoredSession] = field(default_factory=list)
    garbage: list[Delete] = field(default_factory=list)
    damaged: int = 0
    incarnation_max: int = 0


def read_sessions(store: StateStore) -> Contents:
    """All sessions of a store."""
    found = Contents()
    damaged: list[Corrupt] = []
    seen = 0
    session: StoredSession | None = None
    blocks: list[StoredBlock] = []

    def finish() -> None:
        if session is None:
            return
        if _resolve(session, blocks, store):
            found.sessions.append(session)
        else:
            found.garbage.extend(session.garbage)

    for key, value in store.scan(PREFIX, damaged.append):
        session_part, numbers = key[:KEY_BYTES], key[KEY_BYTES + len(BLOCK) :]
        if is_head(key):
            finish()
            session, blocks = _read_head(session_part, value, found), []
        else:
            incarnation, first_id = _NUMBERS.unpack(numbers)
            found.incarnation_max = max(found.incarnation_max, incarnation)
            if session is None or session_part != session.key or incarnation != session.incarnation:
                found.garbage.append(Delete(key))  # of an older session, or the session's own value is damaged
            else:
                blocks.append(_read_block(first_id, value, len(damaged) > seen))
        seen = len(damaged)
    finish()
    for error in damaged:
        log.error("data of a session is lost: %s", error)
    found.damaged = len(damaged)
    return found


def _read_head(key: bytes, value: Any, found: Contents) -> StoredSession | None:
    if value[0] != FORMAT:
        log.error("session %r is stored in format %s, which this version does not know: removed", value[1], value[0])
        found.garbage.append(Delete(key + HEAD))
        return None
    _, uuid, incarnation, start, base = value
    found.incarnation_max = max(found.incarnation_max, incarnation)
    return StoredSession(uuid, key, incarnation, start, base)


def _read_block(first_id: int, value: Any, after_damage: bool) -> StoredBlock:
    base, count, messages, state = value
    return StoredBlock(first_id, first_id + count - 1, base, stored_size(messages), state, after_damage)


def _resolve(session: StoredSession, stored: Sequence[StoredBlock], store: StateStore) -> bool:
    """Takes those of a session's stored blocks that count; False when the session cannot go on."""
    garbage = session.garbage

    def delete(first_id: int) -> Delete:
        return Delete(block_key(session.key, session.incarnation, first_id))

    session.base = max([session.base, *(block.base for block in stored)])
    chain: list[StoredBlock] = []
    for at, block in enumerate(stored):
        follows = block.first_id == chain[-1].last_id + 1 if chain else block.first_id <= session.base + 1
        if block.last_id < session.base and not chain:
            garbage.append(delete(block.first_id))  # its removal failed
        elif block.after_damage:
            garbage.extend(delete(gone.first_id) for gone in chain)
            chain = [block]
            session.base = max(session.base, block.first_id - 1)
        elif follows:
            chain.append(block)
        else:  # of a round that came after a failed one: never sent
            garbage.extend(delete(gone.first_id) for gone in stored[at:])
            break
    session.blocks = chain
    next_id = (session.last_id or session.base) + 1
    if not _is_damaged(store, delete(next_id).key) and session.base <= session.last_id:
        return True
    log.error("session %r has lost its last messages: removed", session.uuid)
    garbage.append(Delete(session.key + HEAD))
    garbage.extend(map(delete, [*(block.first_id for block in stored), next_id]))
    return False


def _is_damaged(store: StateStore, key: bytes) -> bool:
    try:
        store.get(key)
    except Corrupt:
        return True
    return False

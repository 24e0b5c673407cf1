"""Which transactions are committed: their ids, and the markers that say so.

Ids are ``epoch << 32 | n``: n counts from 1 within an epoch, and `state` holds for each epoch the highest n that was
committed (key ``x/`` >I epoch). Each start of the server, and each transaction that failed, begins a new epoch, so that
"n is at most the epoch's marker" says for ever whether a batch found by recovery was committed. Epochs are random:
partitions are recovered on first use, so batches of an earlier epoch may lie in files unseen, even of one that an
older copy of `state` does not know; counting on would give their ids again.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Mapping, Sequence

from engine.errors import Corrupt, EngineError
from engine.state.store import Put, StateReader, StateStore

PREFIX = b"x/"
_EPOCH = struct.Struct(">I")
_N_MAX = (1 << 32) - 1


def read_markers(state: StateStore | StateReader, damaged: list[Corrupt]) -> dict[int, int]:
    """The highest committed n by epoch. What cannot be read is put into `damaged`, and counts as committed: a
    transaction that was acknowledged is never cut off."""
    committed: dict[int, int] = {}

    def found_corrupt(error: Corrupt) -> None:
        damaged.append(error)
        if error.key is not None:
            committed[_EPOCH.unpack(error.key[len(PREFIX) :])[0]] = _N_MAX

    for key, value in state.scan(PREFIX, found_corrupt):
        committed[_EPOCH.unpack(key[len(PREFIX) :])[0]] = int(value)
    return committed


def is_committed(committed: Mapping[int, int], transaction_id: int) -> bool:
    """Whether a batch with this id counts."""
    return (transaction_id & _N_MAX) <= committed.get(transaction_id >> 32, 0)


class Markers:
    """Which transaction ids are committed."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self.damaged: list[Corrupt] = []
        """Markers that cannot be read."""
        self._committed = read_markers(state, self.damaged)
        self.new_epoch()

    def next_id(self) -> int:
        """An id that no batch has."""
        if self._next > _N_MAX:
            self.new_epoch()
        transaction_id = self._epoch << 32 | self._next
        self._next += 1
        return transaction_id

    def new_epoch(self) -> None:
        """No higher marker of this epoch will be written: batches of a failed transaction may still lie in files."""
        self._epoch = 0
        while self._epoch == 0 or self._epoch in self._committed:
            self._epoch = secrets.randbits(32)
        self._next = 1

    def is_committed(self, transaction_id: int) -> bool:
        """Whether a batch with this id counts (any thread)."""
        return is_committed(self._committed, transaction_id)

    def commit(
        self, transaction_id: int, on_done: Callable[[EngineError | None], None], also: Sequence[Put] = ()
    ) -> None:
        """Writes the marker and what goes with it; `on_done` as `StateStore.submit`."""
        epoch, n = transaction_id >> 32, transaction_id & _N_MAX

        def done(error: EngineError | None) -> None:
            if error is None:
                self._committed[epoch] = n
            on_done(error)

        self._state.submit([Put(PREFIX + _EPOCH.pack(epoch), n), *also], done)

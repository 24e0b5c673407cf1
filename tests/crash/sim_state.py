"""The state store in memory, with every step of a round under the test's control: a twin of `LmdbState` for crashes.

A round goes through four steps, each its own call (`run_round` makes them all)::

    gather()   everything submitted becomes the round             a crash here loses it
    write()    its pages are on their way, unsynced               a crash here keeps it whole or loses it whole
    sync()     it is durable, and reads see it                    from here on no crash loses it
    answer()   its answers are posted

`crash()` gives the store that the next process finds. What may or may not survive is chosen by the seed, or by `keep`.
Only one round is ever under way, as with the real store's only writer thread; what is still queued is lost.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.errors import Corrupt, EngineError, ReadOnly
from engine.state.store import CallSoon, OnDone, Op, Submission, pack_submission, unpack_value
from tests.simulated_state import apply

PATH = "state in memory"


class MemoryState:
    """See the module. Implements `engine.state.store.StateStore`."""

    def __init__(
        self,
        call_soon_threadsafe: CallSoon,
        *,
        seed: int = 0,
        rounds_run_by_themselves: bool = False,
        stored: dict[bytes, bytes] | None = None,
    ) -> None:
        """An empty store (or one with packed values).

        Args:
            call_soon_threadsafe: takes the answers, as with the real store.
            seed: decides what a crash keeps.
            rounds_run_by_themselves: a submission posts the running of a round, for tests that do not care for steps.
        """
        self.error: ReadOnly | None = None
        self.pending_bytes = 0
        self.rounds = 0
        self.history: list[dict[bytes, bytes]] = [dict(stored or {})]
        """What was durable after each round; a restored backup is one of the older ones (`older`)."""
        self._call_soon_threadsafe = call_soon_threadsafe
        self._chosen = random.Random(seed)
        self._automatic = rounds_run_by_themselves
        self._stored = dict(stored or {})
        self._queue: list[Submission] = []
        self._round: list[Submission] = []
        self._step = "idle"
        self._closed = False

    # --- StateStore ---

    def get(self, key: bytes) -> Any | None:
        """See StateStore."""
        self._alive()
        stored = self._stored.get(key)
        return None if stored is None else unpack_value(key, stored, PATH)

    def scan(self, prefix: bytes, on_corrupt: Callable[[Corrupt], None] | None = None) -> Iterator[tuple[bytes, Any]]:
        """See StateStore."""
        self._alive()
        return self._unpacked(sorted(item for item in self._stored.items() if item[0].startswith(prefix)), on_corrupt)

    @staticmethod
    def _unpacked(
        items: list[tuple[bytes, bytes]], on_corrupt: Callable[[Corrupt], None] | None
    ) -> Iterator[tuple[bytes, Any]]:
        for key, stored in items:
            try:
                value = unpack_value(key, stored, PATH)
            except Corrupt as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
            else:
                yield key, value

    def submit(self, ops: Sequence[Op], on_done: OnDone | None = None) -> None:
        """See StateStore."""
        submission = pack_submission(ops, on_done)
        self._alive()
        self.pending_bytes += submission.size_bytes
        self._queue.append(submission)
        if self._automatic and len(self._queue) == 1:
            self._call_soon_threadsafe(self.run_round)

    def close(self) -> None:
        """See StateStore."""
        if not self._closed:
            while self._queue or self._step != "idle":
                self.run_round()
            self._closed = True

    # --- steps of a round ---

    def gather(self) -> bool:
        """Begins a round with everything submitted; whether there is anything."""
        assert self._step == "idle"
        self._round, self._queue = self._queue, []
        if self._round:
            self._step = "gathered"
        return bool(self._round)

    def write(self) -> None:
        """Writes the round's pages, unsynced."""
        assert self._step == "gathered"
        self._step = "written"

    def sync(self) -> None:
        """Commits the round."""
        assert self._step == "written"
        self._stored = self._after_round()
        self.history.append(dict(self._stored))
        self.rounds += 1
        self._step = "synced"

    def answer(self, error: EngineError | None = None) -> None:
        """Posts the round's answers: None after `sync`, else the error that refused it."""
        assert self._step == ("idle" if not self._round else "synced") or error is not None
        waiting = deque(self._round)
        self._round = []
        self._step = "idle"
        if waiting:
            self._call_soon_threadsafe(lambda: self._call(waiting, error))

    def run_round(self) -> None:
        """Makes all steps that are left of the round under way, or of a new one."""
        if self._closed or (self._step == "idle" and not self.gather()):
            return
        if self.error is not None:
            self.answer(self.error)
            return
        if self._step == "gathered":
            self.write()
        if self._step == "written":
            self.sync()
        self.answer()

    def refuse_round(self, error: EngineError) -> None:
        """The round under way fails: everything of it is gone; `ReadOnly` ends writing until a restart."""
        assert self._step in ("gathered", "written")
        if isinstance(error, ReadOnly):
            self.error = error
        self.answer(error)

    # --- crashes and damage ---

    def crash(self, call_soon_threadsafe: CallSoon, *, keep: bool | None = None) -> MemoryState:
        """The store that the next process finds; this one takes nothing more.

        Args:
            keep: whether a written, unsynced round survives; None = by the seed.
        """
        self._alive()
        survives = self._chosen.random() < 0.5 if keep is None else keep
        stored = self._after_round() if self._step == "written" and survives else self._stored
        self._closed = True
        return MemoryState(
            call_soon_threadsafe,
            seed=self._chosen.getrandbits(32),
            rounds_run_by_themselves=self._automatic,
            stored=stored,
        )

    def older(self, call_soon_threadsafe: CallSoon, rounds: int) -> MemoryState:
        """The store as it was so many rounds ago, as if a backup of it alone had been restored."""
        stored = self.history[max(0, len(self.history) - 1 - rounds)]
        return MemoryState(
            call_soon_threadsafe,
            seed=self._chosen.getrandbits(32),
            rounds_run_by_themselves=self._automatic,
            stored=stored,
        )

    def damage(self, key: bytes) -> None:
        """Flips one bit of a stored value."""
        stored = bytearray(self._stored[key])
        bit = self._chosen.randrange(8 * len(stored))
        stored[bit // 8] ^= 1 << bit % 8
        self._stored[key] = bytes(stored)

    def _alive(self) -> None:
        if self._closed:
            raise ReadOnly(f"{PATH} is closed")

    def _after_round(self) -> dict[bytes, bytes]:
        stored = dict(self._stored)
        for submission in self._round:
            apply(submission, stored)
        return stored

    def _call(self, waiting: deque[Submission], error: EngineError | None) -> None:
        try:
            while waiting:
                submission = waiting.popleft()
                self.pending_bytes -= submission.size_bytes
                if submission.on_done is not None:
                    submission.on_done(error)
        finally:
            if waiting:
                self._call_soon_threadsafe(lambda: self._call(waiting, error))

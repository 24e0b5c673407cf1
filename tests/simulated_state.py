"""The ``state`` store in memory, with rounds, failures and power cuts as the test wants them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.errors import Corrupt, EngineError
from engine.state.store import DeleteAll, OnDone, Op, Submission, pack_submission, unpack_value


def apply(submission: Submission, stored: dict[bytes, bytes]) -> None:
    """Makes the changes of a submission."""
    for change in submission.changes:
        if isinstance(change, DeleteAll):
            for key in [key for key in stored if key.startswith(change.prefix)]:
                del stored[key]
            continue
        key, value = change
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value


class SimulatedState:
    """What is submitted waits until the test makes a round of it; its answers wait until the test hands them over."""

    def __init__(self, durable: dict[bytes, bytes] | None = None) -> None:
        self.error: EngineError | None = None
        self.pending_bytes = 0
        self.durable = durable if durable is not None else {}
        self.queue: deque[Submission] = deque()
        self.answers: deque[tuple[OnDone | None, EngineError | None]] = deque()
        self.closed = False

    # --- StateStore

    def get(self, key: bytes) -> Any | None:
        stored = self.durable.get(key)
        return None if stored is None else unpack_value(key, stored, "simulated")

    def scan(self, prefix: bytes, on_corrupt: Callable[[Corrupt], None] | None = None) -> Iterator[tuple[bytes, Any]]:
        for key in sorted(key for key in self.durable if key.startswith(prefix)):
            try:
                yield key, unpack_value(key, self.durable[key], "simulated")
            except Corrupt as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        return self.scan(prefix, lambda _: None)

    def submit(self, ops: Sequence[Op], on_done: OnDone | None = None) -> None:
        submission = pack_submission(ops, on_done)
        self.pending_bytes += submission.size_bytes
        self.queue.append(submission)

    def close(self) -> None:
        self.run()
        self.closed = True

    # --- what the test decides

    def round(self, count: int | None = None, error: EngineError | None = None) -> None:
        """Commits (or with `error` refuses) the first `count` submissions; answer() tells."""
        for _ in range(len(self.queue) if count is None else min(count, len(self.queue))):
            submission = self.queue.popleft()
            if error is None:
                apply(submission, self.durable)
            self.pending_bytes -= submission.size_bytes
            self.answers.append((submission.on_done, error))

    def answer(self, count: int | None = None) -> None:
        """Hands over the first `count` answers."""
        for _ in range(len(self.answers) if count is None else min(count, len(self.answers))):
            on_done, error = self.answers.popleft()
            if on_done is not None:
                on_done(error)

    def run(self) -> None:
        """Rounds and answers until nothing is left."""
        while self.queue or self.answers:
            self.round()
            self.answer()

    def crash(self, kept: int) -> SimulatedState:
        """The store after a power cut, in which `kept` more submissions had become durable that nobody was told of."""
        for submission in list(self.queue)[:kept]:
            apply(submission, self.durable)
        return SimulatedState(self.durable)

    def damage(self, key: bytes) -> None:
        """Flips a bit of a stored value."""
        stored = bytearray(self.durable[key])
        stored[-1] ^= 1
        self.durable[key] = bytes(stored)

"""A log with cursors on it, a clock that a test moves, restarts and crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config import TopicConfig
from engine.cursors.cursor import Cursor
from engine.cursors.lags import Lag
from engine.cursors.policies import CursorPolicy
from engine.errors import EngineError
from engine.files.system import Files
from tests.engine_log import EngineLog

OWNER = "blipmq"


class Clock:
    """Monotonic milliseconds that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class CursorLog:
    """A log with its cursors; ``restart`` opens a copy as a kill -9 would leave it, or the same directory."""

    def __init__(
        self,
        path: Path,
        topic: TopicConfig | None = None,
        policy: CursorPolicy | None = None,
        files: Files | None = None,
        **config: Any,
    ) -> None:
        self.path = path
        self.topic = topic
        self.files = files
        self.config = {"tail_cache_bytes": 1 << 20, **config}
        self.clock = Clock()
        self.policy = policy or CursorPolicy()
        self._open(path)

    def _open(self, path: Path) -> None:
        self.engine = EngineLog(path, topic=self.topic, files=self.files, **self.config)
        self.store = self.engine.log.cursors
        self.store.clock_ms = self.clock
        self.store.set_policy(OWNER, self.policy)

    def close(self) -> None:
        self.engine.close()

    def restart(self) -> None:
        self.close()
        self._open(self.path)

    def crash(self, target: Path) -> None:
        """Go on with what is on disk now."""
        self.engine.image(target)
        self.close()
        self.path = target
        self._open(target)

    def subscribe(self, topic: str = "t", **options: Any) -> Cursor:
        partition = self.engine.partition(topic)
        answers: list[EngineError | None] = []
        after_seq = options.pop("after_seq", partition.last_seq)
        cursor = self.store.create(
            OWNER,
            partition,
            after_seq=after_seq,
            on_durable=answers.append,
            **options,  # type: ignore[arg-type]
        )
        self.engine.inbox.run_until(lambda: bool(answers))
        assert answers == [None]
        return cursor

    def get(self, cursor: Cursor) -> Cursor:
        found = self.store.get(cursor.id)
        assert found is not None
        return found

    def poll(self, cursor: Cursor, limit: int = 1 << 30) -> list[tuple[int, bytes]]:
        """Deliver up to ``limit`` records: (number, value)."""
        got: list[tuple[int, bytes]] = []
        while len(got) < limit:
            plan = cursor.next(self.clock.now_ms)
            if plan is None:
                if not cursor.waiting:
                    break
                ready: list[bool] = []
                cursor.wait(lambda ready=ready: ready.append(True))  # type: ignore[misc]
                self.engine.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]
                continue
            reader = cursor.reader
            assert reader.records is not None
            record = reader.records.record()
            assert plan.first <= record.seq <= plan.last
            got.append((record.seq, record.value))
            reader.advance()
            reader.moved(record.seq + 1, reader.current)
            cursor.delivered(plan, record.seq, record.seq, self.clock.now_ms)
        return got

    def seqs(self, cursor: Cursor, limit: int = 1 << 30) -> list[int]:
        return [seq for seq, _ in self.poll(cursor, limit)]

    def flush(self) -> EngineError | None:
        answers: list[EngineError | None] = []
        self.store.flush(answers.append)
        self.engine.inbox.run_until(lambda: bool(answers))
        return answers[0]

    def tick(self, pass_ms: int = 100) -> None:
        self.clock.now_ms += pass_ms
        self.store.tick()
        self.engine.inbox.run_pending()


def lag_of(log: CursorLog, cursor_id: int) -> Lag:
    """The lag of a cursor, when it is known."""
    while True:
        ready: list[bool] = []
        lag = log.store.lags.of(cursor_id, lambda ready=ready: ready.append(True))  # type: ignore[misc]
        if lag is not None:
            return lag
        log.engine.inbox.run_until(lambda ready=ready: bool(ready))  # type: ignore[misc]


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    return [b"%d" % n + b"." * size for n in range(first, last + 1)]

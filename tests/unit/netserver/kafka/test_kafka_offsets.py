"""Offsets that groups of Kafka's commit, apart from a listener."""

from __future__ import annotations

from pathlib import Path

from engine.errors import EngineError
from netserver.kafka.committed import Committed, Offsets
from tests.engine_log import EngineLog


def test_a_group_that_commits_again_after_a_week_is_not_removed_meanwhile(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        place = engine.partition().topic.id, 0
        offsets = Offsets(engine.log)
        done: list[EngineError | None] = []
        offsets.commit("g", {place: Committed(1)}, done.append)
        engine.inbox.run_until(lambda: bool(done))
        offsets.of("g")[place] = Committed(1, at_ms=0)
        assert list(offsets.unused(1e9)) == ["g"]
        offsets.commit("g", {place: Committed(2)}, done.append)
        for name in offsets.unused(2e9):
            offsets.remove(name)
        engine.inbox.run_until(lambda: len(done) == 2)
        assert done == [None, None]
    with EngineLog(tmp_path / "d") as engine:
        assert Offsets(engine.log).of("g")[place].offset == 2

"""The sink loses and doubles nothing: tasks fail, workers, drivers and the server are killed, each at a chosen call."""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from pathlib import Path

import pytest

from engine.state.writer_ledger import STAGED
from netserver.testing import server
from tests.spark.conftest import require_spark
from tests.spark.sink_relay import relayed
from tests.spark.standalone import standalone
from tests.stored_log import NOW_MS, StoredPartition, make_directory
from tests.unit.netserver.admin.test_staged_commits import stored

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROWS, ROWS_PER_TRIGGER, DRIVERS_KILLED = (500_000, 20_000, 15) if NIGHTLY else (3_000, 1_000, 1)
PATIENCE_S = 1500 if NIGHTLY else 300
TEST_S = 5400 if NIGHTLY else 600


def fill(data_dir: Path, topics: tuple[str, ...], rows: int) -> None:
    watermarks = make_directory(data_dir)
    for index, topic in enumerate(topics):
        source = StoredPartition(data_dir, watermarks, name=topic.encode(), topic_id=index + 1, number=index + 1)
        source.begin_segment()
        for first in range(0, rows, 200):
            source.write([b"%s %d" % (topic.encode(), row) for row in range(first, first + 200)], now_ms=NOW_MS + first)
        source.mark()


def check(data_dir: Path, topics: tuple[str, ...], rows: int) -> None:
    """Each row is there once, and nothing that was staged is left."""
    sent = {b"%s %d" % (topic.encode(), row) for topic in topics for row in range(rows)}
    found = Counter(record.value for record in stored(data_dir, b"out"))
    doubled = sum(count - 1 for count in found.values())
    assert (len(sent - set(found)), doubled, len(found)) == (0, 0, len(sent))


def commit_plan() -> deque[str]:
    """The first batch loses its driver behind the commit, the second the server; by night everybody, many times."""
    plan = ["driver after", "", "server before", "server after", "silence"]
    if NIGHTLY:
        kills = ["driver before", "driver after"] * DRIVERS_KILLED
        faults = kills[: DRIVERS_KILLED - 1] + ["server before", "server after"] * 2
        random.Random(10).shuffle(faults)
        plan += [fault for found in faults for fault in (found, "")]
    return deque(plan)


@pytest.mark.slow
@pytest.mark.timeout(TEST_S)
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    require_spark()
    data_dir = tmp_path / "data"
    fill(data_dir, ("in",), ROWS)
    (tmp_path / "kill worker").touch()
    plans = {"/v1/commits": commit_plan(), "/v1/staged": deque(["", "silence", "server after", "", "refuse"])}
    with server(data_dir) as process, relayed(process, plans) as relay:
        relay.run_until_done(tmp_path, ["local[2,4]", str(ROWS_PER_TRIGGER), "in"], PATIENCE_S, DRIVERS_KILLED)
        query = (tmp_path / "of in" / "query").read_text()
        last = process.admin("GET", f"/v1/commits/{query}")
    check(data_dir, ("in",), ROWS)
    assert last["batch"] >= ROWS // ROWS_PER_TRIGGER - 1
    assert not any(plans.values()), "each fault came"
    assert not (tmp_path / "kill worker").exists(), "a worker was killed amid its rows"
    assert not os.listdir(data_dir / STAGED), "what killed drivers had staged went with the commits"
    print(f"{ROWS} rows, 0 lost, 0 doubled; calls: {dict(relay.done)}")


TOPICS = ("left", "right")
EACH, EACH_TRIGGER, KILLED = 60_000, 4_000, 6


@pytest.mark.skipif(not NIGHTLY, reason="minutes: a cluster, and Spark's start after each kill")
@pytest.mark.timeout(TEST_S)
def test_two_queries_into_one_topic_with_tasks_that_run_twice(tmp_path: Path) -> None:
    """On a cluster, with a copy of one task in nearly each batch, which ends at the same time as the task does."""
    require_spark()
    data_dir = tmp_path / "data"
    fill(data_dir, TOPICS, EACH)
    for name in ("kill worker", "kill executor"):
        (tmp_path / name).touch()
    (tmp_path / "copies").mkdir()
    faults = [*["driver before", "driver after"] * (KILLED // 2), *["server before", "server after"] * 2]
    faults += ["silence", "cluster", "cluster"]
    random.Random(17).shuffle(faults)
    plans = {"/v1/commits": deque(["", *(fault for found in faults for fault in (found, ""))])}
    with server(data_dir) as process, standalone(tmp_path) as cluster, relayed(process, plans) as relay:
        relay.others["cluster"] = lambda: cluster.restart_worker(1)
        relay.run_until_done(tmp_path, [cluster.url, str(EACH_TRIGGER), *TOPICS], PATIENCE_S, KILLED)
    check(data_dir, TOPICS, EACH)
    assert not any(plans.values()), "each fault came"
    assert not any((tmp_path / name).exists() for name in ("kill worker", "kill executor"))
    copies = len(os.listdir(tmp_path / "copies"))
    assert copies > EACH // EACH_TRIGGER
    print(f"2 x {EACH} rows, 0 lost, 0 doubled; {copies} copies of tasks; calls: {dict(relay.done)}")

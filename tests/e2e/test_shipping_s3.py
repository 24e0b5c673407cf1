"""A server that stores its log in a bucket: killed at any moment, with faults between, and with a store that hangs."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.remote.bucket import Bucket
from netserver.testing import ServerProcess, Settings
from tests.engine_log import EngineLog
from tests.s3_faults import CHANCES, s3_faults
from tests.s3_server import BUCKET, CONFIG, s3_server
from tests.shipped_log import found_in, problem_of

pytest.importorskip("obstore", reason="S3 IS NOT TESTED: pip install -e '.[remote]'")

KILLS = 30 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 3
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
OFF: Settings = {name: {"listen": "off"} for name in ("figg", "reliably", "tank", "blipmq", "fujin", "kafka")}

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """The port of a server of S3."""
    with s3_server() as port:
        yield port


def settings(port: int, prefix: str, **more: Any) -> Settings:
    remote = {"url": f"s3://{BUCKET}/{prefix}", "endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
    return {**OFF, "remote": {**remote, "commit_interval": "200ms", **more}, "topics": {"segment_bytes": "64KiB"}}


def publish(process: ServerProcess, topic: str, values: list[str]) -> None:
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": value} for value in values]})


def remote(process: ServerProcess) -> Any:
    return process.admin("GET", "/v1/status")["remote"]


def wait_stored(process: ServerProcess) -> None:
    wait_for(process, "stored", lambda it: it["phase"] == "storing" and not it["lag_records"] and not it["lag_seconds"])


def wait_for(process: ServerProcess, what: str, is_so: Callable[[Any], bool]) -> None:
    until = time.monotonic() + 240  # a start asks for each piece that is needed, and the proxy is slow
    while not is_so(found := remote(process)):
        assert time.monotonic() < until, (what, found)
        time.sleep(0.05)


def test_a_server_that_is_killed_stores_everything_in_the_end(tmp_path: Path, store: int) -> None:
    """What it acknowledged is in its directory, and that is in the bucket, byte for byte."""
    random, acknowledged = Random(1), 0
    with (
        s3_faults(store, random, dict(CHANCES)) as proxy,
        ServerProcess(tmp_path / "data", settings(proxy.port, "killed"), environment=CREDENTIALS) as process,
    ):
        for _ in range(KILLS):
            wait_for(process, "joined", lambda found: found["phase"] != "connecting")
            killer = threading.Timer(random.uniform(0.2, 1.2), process.kill)
            killer.start()
            try:
                for number in range(10_000):
                    publish(process, f"t{number % 3}", ["x" * random.randrange(9000)])
                    acknowledged += 1
            except (urllib.error.URLError, OSError):
                killer.join()
            process.restart()
        wait_stored(process)
        assert process.stop() == 0
        proxy.calm()
    found = found_in(Bucket.open(f"s3://{BUCKET}/killed", {**CONFIG, "endpoint": f"http://127.0.0.1:{store}"}, 10.0))
    assert found.head.epoch == KILLS + 1
    with EngineLog(tmp_path / "data") as log:
        assert problem_of(found, log.log, whole=False) is None
        partitions = [log.partition(topic.name.decode()) for topic in log.log.catalog]
        assert all(found.catalog.tail[(one.topic.id, 0)].committed == one.committed_seq for one in partitions)
        assert sum(one.committed_seq for one in partitions) >= acknowledged > 10


def test_a_store_that_hangs_slows_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with ServerProcess(tmp_path / "data", settings(port, "hangs"), environment=CREDENTIALS) as process:
            started = time.monotonic()
            for _ in range(20):
                publish(process, "t", ["x"] * 10)
            assert time.monotonic() - started < 5
            found = remote(process)
            assert (found["phase"], found["lag_records"]) == ("connecting", 200)
            started = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - started < 10


def test_a_prefix_of_another_log_is_refused(tmp_path: Path, store: int) -> None:
    with ServerProcess(tmp_path / "one", settings(store, "taken"), environment=CREDENTIALS) as process:
        wait_stored(process)
    with ServerProcess(tmp_path / "two", settings(store, "taken"), environment=CREDENTIALS) as process:
        publish(process, "t", ["x"])
        wait_for(process, "refused", lambda found: found["phase"] == "stopped")
        assert "another log is stored there" in remote(process)["problem"]
        assert "another log is stored there" in process.log_text

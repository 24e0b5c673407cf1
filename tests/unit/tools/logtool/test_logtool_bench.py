"""`logtool bench` against a real server: every protocol, what is left behind, what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer
from tests.processes import Started
from tests.unit.conftest import Logtool
from tools.logtool.lib.loads import Times, different

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("bench") / "data") as started:
        yield started


def topics(process: ServerProcess) -> set[str]:
    return {item["name"] for item in process.admin("GET", "/v1/topics")["items"]}


def measured(process: ServerProcess, logtool: Logtool, *words: str) -> dict[str, Any]:
    code, out, err = logtool("--data-dir", str(process.data_dir), "-o", "json", "bench", *words)
    assert (code, err) == (0, "")
    (item,) = json.loads(out)["items"]
    assert isinstance(item, dict)
    return item


@pytest.mark.parametrize("via", ["figg", "tank", "blipmq", "fujin"])
def test_publish(process: ServerProcess, logtool: Logtool, via: str) -> None:
    item = measured(process, logtool, "publish", "--via", via, "--records", "700", "--size", "20", "--window", "300")
    assert (item["measured"], item["records"], item["record_bytes"]) == ("publish", 700, 20)
    assert item["durability"] == "always"
    assert item["records_per_second"] == pytest.approx(700 / item["seconds"], rel=0.01)
    assert 0 < item["ack_p50_ms"] <= item["ack_p95_ms"] <= item["ack_p99_ms"] <= item["ack_max_ms"]
    assert topics(process) == set()


@pytest.mark.parametrize("via", ["figg", "tank", "blipmq", "fujin"])
def test_consume(process: ServerProcess, logtool: Logtool, via: str) -> None:
    item = measured(process, logtool, "consume", "--via", via, "--records", "700", "--durability", "never")
    assert (item["measured"], item["records"], item["record_bytes"]) == ("consume", 700, 100)
    assert item["durability"] == "never"
    assert topics(process) == set()


@pytest.mark.parametrize("via", ["figg", "tank", "blipmq", "fujin"])
def test_latency(process: ServerProcess, logtool: Logtool, via: str) -> None:
    item = measured(process, logtool, "latency", "--via", via, "--records", "20")
    assert item["records"] == 20
    assert 0 < item["ack_p50_ms"] <= item["ack_max_ms"] <= item["seconds"] * 1000
    assert 0 < item["delivery_p50_ms"] <= item["delivery_max_ms"] <= item["seconds"] * 1000
    assert topics(process) == set()


def test_consume_through_fujin_whose_groups_begin_at_the_newest(tmp_path: Path, logtool: Logtool) -> None:
    """Fails when the group begins after the topic was filled."""
    (tmp_path / "quintlog.toml").write_text('[fujin]\nstart = "newest"\n')
    with server(tmp_path / "data", arguments=("--config", str(tmp_path / "quintlog.toml"))) as newest:
        item = measured(newest, logtool, "consume", "--via", "fujin", "--records", "500")
        assert (item["records"], item["record_bytes"]) == (500, 100)
        assert newest.admin("GET", "/v1/subscriptions")["items"] == []


def test_a_topic_that_is_there_is_kept(process: ServerProcess, logtool: Logtool) -> None:
    process.admin("POST", "/v1/topics", {"name": "orders", "config": {"durability": "interval"}})
    more = ("--topic", "orders")
    code, _, err = logtool("--data-dir", str(process.data_dir), "bench", "consume", *more)
    assert (code, "has no records" in err) == (5, True)
    assert measured(process, logtool, "publish", "--records", "300", *more)["durability"] == "interval"
    assert measured(process, logtool, "consume", *more)["records"] == 300
    assert topics(process) == {"orders"}
    process.admin("DELETE", "/v1/topics/orders")


@pytest.mark.parametrize("via", ["figg", "tank", "blipmq"])
@pytest.mark.parametrize("measure", ["publish", "consume", "latency"])
def test_a_topic_in_use_is_left_as_it_was(process: ServerProcess, logtool: Logtool, via: str, measure: str) -> None:
    """No subscription is left, none is moved, and no record comes without a word for it."""
    process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": str(n)} for n in range(40)]})
    try:
        with Peer(process.address("blipmq")) as peer:
            subscription = peer.subscribe(b"orders")
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "unread"}] * 10})
        before = process.admin("GET", "/v1/subscriptions")["items"]
        assert [item["id"] for item in before] == [subscription]
        words = (measure, "--via", via, "--topic", "orders", "--records", "5")
        if measure != "consume":
            code, out, err = logtool("--data-dir", str(process.data_dir), "bench", *words)
            assert (code, out) == (2, "")
            assert "5 records of a measurement will be published to orders, which has 50 records and 1 durable" in err
            assert partitions(process)[0]["next_offset"] == 51
        measured(process, logtool, *words, "--yes")
        (after,) = process.admin("GET", "/v1/subscriptions")["items"]
        assert (after["id"], after["next_offset"]) == (subscription, before[0]["next_offset"])
        assert partitions(process)[0]["next_offset"] == (51 if measure == "consume" else 56)
    finally:
        process.admin("DELETE", "/v1/topics/orders")


def test_what_is_refused(process: ServerProcess, logtool: Logtool, tmp_path: Path) -> None:
    bench = ("--data-dir", str(process.data_dir), "bench")
    for words, code, text in (
        (("consume", "--via", "fujin", "--topic", "orders"), 2, "would move its readers"),
        (("latency", "--via", "fujin", "--topic", "orders"), 2, "would move its readers"),
        (("publish", "--via", "carrier-pigeon"), 2, "expected figg"),
        (("publish", "--topic", "orders", "--durability", "never"), 2, "has one already"),
        (("publish", "--topic", "orders:1"), 2, "partition 0"),
        (("latency", "--topic", "nothing"), 5, "nothing"),
        (("publish", "--via", "figg=127.0.0.1:1"), 3, "127.0.0.1:1"),
    ):
        found, out, err = logtool(*bench, *words)
        assert (found, out) == (code, ""), err
        assert text in err
    code, _, err = logtool("--data-dir", str(tmp_path), "bench", "latency")
    assert (code, "no server" in err) == (3, True)
    assert topics(process) == set()


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(process: ServerProcess, number: int, expected: int) -> None:
    """The topic goes, and Ctrl-C reports as far as it came."""
    command = [sys.executable, "-m", "tools.logtool", "--data-dir", str(process.data_dir), "-o", "json"]
    words = ["bench", "latency", "--records", "100000000", "--durability", "never"]
    with Started([*command, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        while not any(item["next_offset"] > 5 for item in partitions(process)):
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(number)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == expected
    if number == signal.SIGINT:
        assert json.loads(out)["items"][0]["records"] >= 4
    assert topics(process) == set()


def partitions(process: ServerProcess) -> list[dict[str, Any]]:
    items = process.admin("GET", "/v1/topics")["items"]
    return [detail for item in items for detail in item["partition_details"] if "next_offset" in detail]


def test_percentiles() -> None:
    times = Times([n / 1000 for n in range(200, 0, -1)])
    assert times.item("ack") == {"ack_p50_ms": 100.0, "ack_p95_ms": 190.0, "ack_p99_ms": 198.0, "ack_max_ms": 200.0}
    assert Times([0.5]).item("x") == {"x_p50_ms": 500.0, "x_p95_ms": 500.0, "x_p99_ms": 500.0, "x_max_ms": 500.0}
    assert Times().item("x") == {}


def test_records_differ() -> None:
    values = [record.value for record in different(100)]
    assert (len(values), len(set(values)), {len(value) for value in values}) == (256, 256, {100})
    assert [len(different(size)) for size in (1, 1 << 20, 4 << 20, 16 << 20)] == [256, 4, 1, 1]

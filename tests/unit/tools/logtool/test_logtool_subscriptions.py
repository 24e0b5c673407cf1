"""`logtool subscriptions` and its admin API: through a server, and on the files of one that was killed."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

SETTINGS = {
    **{name: {"listen": "off"} for name in ("figg", "tank", "fujin", "reliably", "kafka")},
    "blipmq": {"max_retries": "1", "retry_backoff_ms": "1", "dead_letter_suffix": ".dead"},
}


def one(found: tuple[int, str, str]) -> dict[str, Any]:
    code, text, err = found
    assert code == 0, err
    (item,) = json.loads(text)["items"]
    return dict(item)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def published(process: ServerProcess, topic: str) -> int:
    try:
        details = process.admin("GET", f"/v1/topics/{topic}")["partition_details"]
    except urllib.error.HTTPError:
        return 0
    return int(details[0]["next_offset"]) - 1


def test_list_show_pending_reset_delete(tmp_path: Path, logtool: Logtool) -> None:
    settings = {**SETTINGS, "blipmq": {"retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h"}}
    with server(tmp_path / "data", settings) as process, contextlib.ExitStack() as connections:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        assert logtool(*place, "subscriptions", "list", "-o", "jsonl") == (0, "", "")
        peer = connections.enter_context(Peer(process.address("blipmq")))
        peer.publish(b"orders/1", b"before")
        first, other = peer.subscribe(b"orders/1"), peer.subscribe("ü".encode(), 0)
        peer.publish(b"orders/1", *(b"%d" % n for n in range(10)))
        assert len(peer.poll(first, 6)) == 6
        assert peer.ack(first, 1, 2, 4) == []
        for how in (place, address):
            code, text, _ = logtool(*how, "subscriptions", "list", "-o", "json")
            assert code == 0
            found, quiet = json.loads(text)["items"]
            times = {name: found[name] for name in ("created_ms", "used_ms", "lag_seconds", "lag_trend")}
            assert 0 < found["lag_seconds"] < 60
            assert found == times | {
                "id": first, "protocol": "blipmq", "group": None, "topic": "orders/1", "partition": 0, "qos": 1,
                "next_offset": 8, "acknowledged_offset": 3, "unacknowledged": 3, "lag": 7, "paused": False,
            }  # fmt: skip
            assert (quiet["id"], quiet["topic"], quiet["qos"]) == (other, "ü", 0)
            shown = one(logtool(*how, "subscriptions", "show", str(first), "-o", "json"))
            moving = {name: shown[name] for name in ("lag_seconds", "lag_trend")}
            assert shown == found | moving | {"log": {"first_offset": 1, "next_offset": 12}}
            code, text, _ = logtool(*how, "subscriptions", "pending", str(first), "-o", "json")
            runs = json.loads(text)["items"]
            assert [(run["first_offset"], run["last_offset"], run["first_tag"], run["records"]) for run in runs] == [
                (4, 4, 3, 1), (6, 7, 5, 2),
            ]  # fmt: skip
            assert {(run["deliveries"], run["state"]) for run in runs} == {(1, "in flight")}
            assert all(0 < run["due_ms"] <= 4_500_000 for run in runs)
        assert "orders/1" in logtool(*place, "subscriptions", "list", "orders*")[1]
        assert "orders/1" not in logtool(*place, "subscriptions", "list", "x*")[1]
        assert "in flight" in logtool(*place, "subscriptions", "pending", str(first))[1]
        assert "orders/1" in logtool(*place, "subscriptions", "show", str(first))[1]
        for command in (
            ("show", "99"),
            ("pending", "99"),
            ("reset", "99", "--to", "1", "--yes"),
            ("delete", "99", "--yes"),
        ):
            assert logtool(*place, "subscriptions", *command)[0] == 5, command
        assert logtool(*place, "subscriptions", "show", "0")[0] == 2
        # reset
        assert logtool(*place, "subscriptions", "reset", str(first), "--to", "earliest")[0] == 2, "not confirmed"
        dry = one(logtool(*place, "subscriptions", "reset", str(first), "--to", "-2", "--dry-run", "-o", "json"))
        assert dry == {"id": first, "next_offset": 10}
        assert one(logtool(*place, "subscriptions", "show", str(first), "-o", "json"))["next_offset"] == 8
        assert one(logtool(*address, "subscriptions", "reset", str(first), "--to", "2", "--yes", "-o", "json"))
        assert peer.poll(first, 2) == [(7, b"0"), (8, b"1")], "no tag comes again"
        assert logtool(*place, "subscriptions", "reset", str(first), "--to", "latest", "--yes")[0] == 0
        assert peer.poll(first, 2) == []
        with pytest.raises(urllib.error.HTTPError, match="400"):
            process.admin("POST", f"/v1/subscriptions/{first}/reset", {"next_offset": 99})
        assert logtool(*place, "subscriptions", "delete", str(other), "--yes") == (0, "", f"removed {other}\n")
        assert peer.poll(first, 1) == []
        process.kill()
        left = one(logtool(*place, "subscriptions", "list", "-o", "json"))
        assert (left["id"], left["next_offset"], left["lag"], left["lag_seconds"]) == (first, 12, 0, 0)
        code, text, err = logtool(
            *place, "subscriptions", "reset", str(first), "--to", "earliest", "--yes", "-o", "json"
        )
        assert (code, json.loads(text)["items"]) == (0, [{"id": first, "next_offset": 1}])
        assert "no server is running" in err
        assert one(logtool(*place, "subscriptions", "show", str(first), "-o", "json"))["lag"] == 11
        assert logtool(*place, "subscriptions", "delete", str(first), "--yes")[0] == 0
        assert logtool(*place, "subscriptions", "pending", str(first))[0] == 5
        assert logtool(*place, "subscriptions", "list", "-o", "jsonl")[1] == ""


def test_pause_and_resume(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", SETTINGS) as process, contextlib.ExitStack() as connections:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        peer = connections.enter_context(Peer(process.address("blipmq")))
        first = peer.subscribe(b"orders")
        peer.publish(b"orders", b"a", b"b")
        assert logtool(*place, "subscriptions", "pause", str(first)) == (0, "", f"paused {first}\n")
        assert logtool(*address, "subscriptions", "pause", "99")[0] == 5
        assert one(logtool(*address, "subscriptions", "show", str(first), "-o", "json"))["paused"]
        assert peer.poll(first, 1) == []
        assert logtool(*address, "subscriptions", "resume", str(first))[0] == 0
        assert peer.poll(first, 1) == [(1, b"a")]
        process.kill()
    for command, is_paused in (("pause", True), ("resume", False)):
        assert logtool(*place, "subscriptions", command, str(first))[0] == 0
        assert one(logtool(*place, "subscriptions", "list", "-o", "json"))["paused"] is is_paused


def test_what_was_in_flight_is_queued_in_the_files(tmp_path: Path, logtool: Logtool) -> None:
    with (
        server(tmp_path / "data", {**SETTINGS, "blipmq": {"acks": "synced"}}) as process,
        contextlib.ExitStack() as connections,
    ):
        peer = connections.enter_context(Peer(process.address("blipmq")))
        subscription = peer.subscribe(b"t")
        peer.publish(b"t", b"a", b"b", b"c")
        assert len(peer.poll(subscription, 3)) == 3
        assert peer.ack(subscription, 2) == []
        process.kill()
    place = ("--data-dir", str(process.data_dir))
    code, text, _ = logtool(*place, "subscriptions", "pending", str(subscription), "-o", "json")
    assert code == 0
    assert [(run["first_offset"], run["last_offset"], run["state"]) for run in json.loads(text)["items"]] == [
        (1, 1, "queued"), (3, 3, "queued"),
    ]  # fmt: skip


def test_redrives_at_the_same_time_append_each_dead_letter_once(tmp_path: Path) -> None:
    """As of one who gave up waiting and asked again."""
    with server(tmp_path / "data", SETTINGS) as process, Peer(process.address("blipmq")) as peer:
        subscription = peer.subscribe(b"t")
        peer.publish(b"t", *(b"%d" % n for n in range(2000)))
        assert len(peer.poll(subscription, 2000)) == 2000
        until(lambda: published(process, "t.dead") == 2000)

        def redrive(_: int) -> int:
            return int(process.admin("POST", f"/v1/subscriptions/{subscription}/redrive", {})["redriven"])

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(redrive, range(4))) == [0, 0, 0, 2000]
        assert published(process, "t") == 4000


def test_redrive(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", SETTINGS) as process, contextlib.ExitStack() as connections:
        place = ("--data-dir", str(process.data_dir))
        peer = connections.enter_context(Peer(process.address("blipmq")))
        subscription, other = peer.subscribe(b"t"), peer.subscribe(b"t")
        bodies = [b"%d" % n for n in range(600)]
        peer.publish(b"t", *bodies)
        assert logtool(*place, "subscriptions", "redrive", str(subscription))[0] == 5, "no such topic yet"
        assert len(peer.poll(other, 3)) == 3
        assert len(peer.poll(subscription, 600)) == 600
        until(lambda: published(process, "t.dead") == 603)
        assert logtool(*place, "subscriptions", "redrive", "99")[0] == 5
        assert logtool(*place, "subscriptions", "redrive", str(subscription), "--to", "t.dead")[0] == 2
        command = (*place, "subscriptions", "redrive", str(subscription), "-o", "json")
        assert one(logtool(*command, "--limit", "10")) == {"id": subscription, "redriven": 10}
        assert published(process, "t") == 610
        assert one(logtool(*command))["redriven"] == 590
        assert one(logtool(*command))["redriven"] == 0
        assert published(process, "t") == 1200
        assert {body for _, body in peer.poll(subscription, 600)} == set(bodies)
        until(lambda: published(process, "t.dead") == 1203)
        process.kill()
        command = (*place, "subscriptions", "redrive", str(other))
        assert logtool(*command)[0] == 2, "--from is missing"
        assert logtool(*command, "--from", "t.dead", "--to", "t.dead")[0] == 2
        code, _, err = logtool(*command, "--from", "t.dead")
        assert (code, err.splitlines()[-1]) == (0, "redrove 3 records")
        assert logtool(*command, "--from", "t.dead")[2].splitlines()[-1] == "redrove 0 records"
        assert logtool(*command, "--from", "missing")[0] == 5
        values = logtool(*place, "cat", "t", "--from", "-3", "-o", "jsonl")[1].splitlines()
        assert [(json.loads(line)["value"], json.loads(line).get("headers")) for line in values] == [
            ("0", None), ("1", None), ("2", None),
        ]  # fmt: skip
        listed = json.loads(logtool(*place, "subscriptions", "list", "-o", "json")[1])["items"]
        assert [item["id"] for item in listed] == [subscription, other], "what remembers redrives is no subscription"

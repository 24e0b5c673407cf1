"""`logtool sessions`, the admin API of sessions and their metrics: beside a server, through it, and on the files."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import server
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "fujin", "kafka")}


def stream(address: tuple[str, int], request: dict[str, Any], count: int) -> socket.socket:
    """A connection that has received so many messages."""
    connection = socket.create_connection(address)
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb") as lines:
        for _ in range(count):
            assert lines.readline().startswith(b'{"id"')
    return connection


def test_sessions(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", OFF) as process:
        place = ("--data-dir", str(process.data_dir))
        address = ("--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token"))
        assert logtool(*place, "sessions", "list", "-o", "jsonl") == (0, "", "")
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": str(n)} for n in range(5)]})
        where = process.address("reliably")
        first = stream(where, {"uuid": "a/ü", "params": {"count": 7}}, 7)
        second = stream(where, {"uuid": "b", "params": {"topic": "orders", "offset": 1, "count": 9}}, 4)
        for how in (place, address):
            code, text, _ = logtool(*how, "sessions", "list", "-o", "json")
            assert code == 0
            numbers, records = json.loads(text)["items"]
            assert numbers | {"stored_bytes": 0} == {
                "uuid": "a/ü", "application": "numbers", "left": 0, "last_id": 7, "acknowledged_id": 0,
                "unacknowledged": 7, "stored_bytes": 0, "connected": True, "expires_in_seconds": None,
            }  # fmt: skip
            assert (records["topic"], records["offset"], records["left"], records["last_id"]) == ("orders", 5, 5, 4)
        second.close()
        assert "orders" in logtool(*place, "sessions", "list", "b*")[1]
        assert re.search(r"expires in seconds +\d+", logtool(*place, "sessions", "show", "b")[1])
        assert logtool(*place, "sessions", "show", "c")[0] == 5
        assert logtool(*place, "sessions", "drop", "b")[0] == 2
        assert logtool(*place, "sessions", "drop", "c", "--yes")[0] == 5
        metrics = process.admin("GET", "/metrics")
        assert 'quintlog_sessions{protocol="reliably"} 2.0' in metrics
        assert 'quintlog_sessions_registered_total{protocol="reliably"} 2.0' in metrics
        assert logtool(*place, "sessions", "drop", "a/ü", "--yes") == (0, "", "removed a/ü\n")
        assert first.recv(100) == b""
        first.close()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            process.admin("GET", "/v1/sessions/x")
        assert process.admin("GET", "/v1/sessions/b")["uuid"] == "b"
        process.kill()
        (left,) = json.loads(logtool(*place, "sessions", "list", "-o", "json")[1])["items"]
        assert (left["uuid"], left["connected"], left["expires_in_seconds"]) == ("b", None, None)
        code, _, err = logtool(*place, "sessions", "drop", "b", "--yes")
        assert (code, err.splitlines()[-1]) == (0, "removed b")
        assert logtool(*place, "sessions", "drop", "b", "--yes")[0] == 5
        assert logtool(*place, "sessions", "list", "-o", "jsonl") == (0, "", "")


def test_without_the_listener(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", {**OFF, "reliably": {"listen": "off"}}) as process:
        assert process.admin("GET", "/v1/sessions") == {"schema": 1, "items": []}
        assert logtool("--data-dir", str(process.data_dir), "sessions", "drop", "x", "--yes")[0] == 5


def test_a_restart_keeps_to_the_configured_expiry(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {**OFF, "reliably": {"session_expiry_ms": "1h"}}
    with server(tmp_path / "data", settings) as process:
        stream(process.address("reliably"), {"uuid": "a", "params": {"count": 3}}, 3).close()
        process.kill()
        process.start()
        assert process.admin("GET", "/v1/sessions/a")["expires_in_seconds"] > 3000

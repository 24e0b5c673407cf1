"""`logtool publish --via kafka`: keys, partitions, TLS and a key, and what cannot be.

As a program of its own: aiokafka does not wait for the end of its connections, which the end of the program closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netserver.access.key_file import add_identity
from netserver.testing import server
from tests.certificates import Authority
from tests.unit.conftest import Logtool

pytest.importorskip("aiokafka")
pytestmark = pytest.mark.whole
OTHERS = {name: {"listen": "off"} for name in ("figg", "tank", "fujin", "blipmq", "reliably")}
KEY = "a key that is long enough"


def publish(*words: str, key: str = "") -> tuple[int, str, str]:
    """(exit code, what it printed, what it complained of)"""
    command = [sys.executable, "-m", "tools.logtool", *words]
    ended = subprocess.run(
        command, env=os.environ | {"QUINTLOG_API_KEY": key}, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def test_by_tls_and_key_into_partitions(tmp_path: Path, logtool: Logtool) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, private = authority.signed("server")
    access = tmp_path / "access"
    access.write_text("")
    add_identity(access, {"name": "shop", "publish": ["orders"]}, KEY)
    kafka = {"tls_certificate": certificate, "tls_key": private}
    with server(tmp_path / "data", {**OTHERS, "access": {"file": str(access)}, "kafka": kafka}) as process:
        process.admin("POST", "/v1/topics", {"name": "orders", "partitions": 3})
        lines = tmp_path / "lines"
        lines.write_text("".join(f"k{number % 5}=value {number}\n" for number in range(500)))
        place = ("--data-dir", str(process.data_dir))
        via = ("--ca", str(authority.ca), "--via", f"kafka=localhost:{process.address('kafka')[1]}")
        code, out, told = publish(
            *place, "publish", "orders", str(lines), *via, "--key-delimiter", "=", key=f"shop:{KEY}"
        )
        assert (code, out) == (0, "500 records acknowledged\n"), told
        found = logtool(*place, "cat", "orders", "--format", "%p %k=%v\\n")[1].splitlines()
        assert sorted(line.partition(" ")[2] for line in found) == sorted(lines.read_text().splitlines())
        assert len({line.partition("=")[0] for line in found}) == 5, "a key is in one partition"
        code, _, told = publish(*place, "publish", "theirs:0", str(lines), *via, key=f"shop:{KEY}")
        assert (code, "no right to publish to this topic" in told) == (4, True), told
        code, _, told = publish(*place, "publish", "orders:2", str(lines), *via, key=f"shop:not {KEY}")
        assert (code, "name or key is wrong" in told) == (4, True), told
        code, _, told = publish(*place, "publish", "orders:2", str(lines), *via[2:], key=f"shop:{KEY}")
        assert (code, "does it speak TLS" in told) == (3, True), told


def test_what_is_wrong_before_anything_is_sent(tmp_path: Path, logtool: Logtool) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    code, _, told = publish("publish", "t", str(lines), "--via", "kafka=127.0.0.1:1", "--timeout", "4")
    assert (code, "no Kafka at 127.0.0.1:1" in told) == (3, True), told
    code, _, told = publish("publish", "t", str(lines), "--via", "kafka=127.0.0.1:1", key="without a name")
    assert (code, "NAME:KEY" in told) == (2, True), told
    assert logtool("bench", "publish", "--via", "kafka")[0] == 2, "that is measured by its own clients"

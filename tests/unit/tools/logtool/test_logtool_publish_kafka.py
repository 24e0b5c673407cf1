"""`logtool publish --via kafka`: keys, partitions, TLS and a key, and what cannot be."""

from __future__ import annotations

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


def test_by_tls_and_key_into_partitions(tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.signed("server")
    access = tmp_path / "access"
    access.write_text("")
    add_identity(access, {"name": "shop", "publish": ["orders", "new"]}, KEY)
    kafka = {"tls_certificate": certificate, "tls_key": key}
    with server(tmp_path / "data", {**OTHERS, "access": {"file": str(access)}, "kafka": kafka}) as process:
        process.admin("POST", "/v1/topics", {"name": "orders", "partitions": 3})
        lines = tmp_path / "lines"
        lines.write_text("".join(f"k{number % 5}=value {number}\n" for number in range(500)))
        _, port = process.address("kafka")
        place = ("--data-dir", str(process.data_dir), "--ca", str(authority.ca))
        via = ("--via", f"kafka=localhost:{port}")
        monkeypatch.setenv("QUINTLOG_API_KEY", f"shop:{KEY}")
        code, out, told = logtool(*place, "publish", "orders", str(lines), *via, "--key-delimiter", "=")
        assert (code, out) == (0, "500 records acknowledged\n"), told
        found = logtool(*place, "cat", "orders", "--format", "%p %k=%v\\n")[1].splitlines()
        assert sorted(line.partition(" ")[2] for line in found) == sorted(lines.read_text().splitlines())
        assert len({line.partition("=")[0] for line in found}) == 5, "a key is in one partition"
        assert logtool(*place, "publish", "orders:2", str(lines), *via)[0] == 0
        assert len(logtool(*place, "cat", "orders:2", "--format", "%p\\n")[1].splitlines()) >= 500
        code, _, told = logtool(*place, "publish", "theirs", str(lines), *via)
        assert (code, "Authorization" in told or "authoriz" in told) == (4, True), told
        monkeypatch.setenv("QUINTLOG_API_KEY", f"shop:not {KEY}")
        code, _, told = logtool(*place, "publish", "orders", str(lines), *via)
        assert (code, "are name and key right?" in told) == (3, True), told
        monkeypatch.setenv("QUINTLOG_API_KEY", KEY)
        assert logtool(*place, "publish", "orders", str(lines), *via)[0] == 2, "no name before it"


def test_nobody_is_there(tmp_path: Path, logtool: Logtool) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    code, _, told = logtool("publish", "t", str(lines), "--via", "kafka=127.0.0.1:1", "--timeout", "4")
    assert (code, "no Kafka at 127.0.0.1:1" in told) == (3, True), told
    assert logtool("bench", "publish", "--via", "kafka")[0] == 2, "that is measured by its own clients"

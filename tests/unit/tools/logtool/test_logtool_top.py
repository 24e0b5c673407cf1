"""`logtool top` against a real server: what it counts, in a pipe, on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.processes import Started
from tests.unit.conftest import Logtool
from tools.logtool.lib.address import Admin
from tools.logtool.top import TOPICS_SHOWN, Picture, Sample

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("top") / "data") as started:
        yield started


def publish(process: ServerProcess, topic: str, count: int) -> None:
    process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": "x" * 100}] * count})


def command(process: ServerProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "tools.logtool", "--data-dir", str(process.data_dir), "top", "--every", "0.1", *words]


def test_what_happened_between_two_samples(process: ServerProcess) -> None:
    publish(process, "quiet", 7)
    publish(process, "busy", 1)
    admin = Admin(process.admin_url, "", 30.0)
    before = Sample.take(admin)
    publish(process, "busy", 30)
    publish(process, "busy", 20)
    after = Sample.take(admin)
    picture = Picture(before, after)
    assert picture.rose("records_published_total") == picture.rose("records_published_total", "http") == 50
    lines = {line["protocol"]: line for line in picture.protocols()}
    assert list(lines)[:6] == ["figg", "reliably", "tank", "blipmq", "fujin", "kafka"]
    assert lines["http"]["published_per_second"] == pytest.approx(50 / picture.seconds, abs=0.1)
    assert lines["figg"] == {"protocol": "figg"} | dict.fromkeys(list(lines["figg"])[1:], 0) | {"ack_mean_ms": None}
    busy, quiet = picture.topics()
    assert (busy["topic"], quiet["topic"]) == ("busy", "quiet")
    assert busy["published_per_second"] == pytest.approx(50 / picture.seconds, abs=0.1)
    assert (quiet["published_per_second"], quiet["size_bytes"] > 100) == (0, True)
    whole = picture.server()
    assert whole["syncs_per_second"] > 0
    assert whole["sync_mean_ms"] > 0
    assert whole["disk_free_bytes"] > 0


def test_a_server_that_was_started_anew_counts_from_zero() -> None:
    counted = [{"records_published_total": {"figg": value}} for value in (1000.0, 30.0)]
    offsets = [{"topic_records_ever": {f"t{n}": 5.0 for n in range(30)} | {"_other": 9.0}}] * 2
    samples = [Sample(at, *sums) for at, *sums in zip((1.0, 3.0), counted, offsets, strict=True)]
    picture = Picture(*samples)
    assert picture.per_second("records_published_total") == 15
    assert picture.mean_ms("sync_seconds") is None
    assert [line["topic"] for line in picture.topics()] == sorted(f"t{n}" for n in range(30))[:TOPICS_SHOWN]


def test_once(process: ServerProcess, logtool: Logtool) -> None:
    top = ("--data-dir", str(process.data_dir), "top", "--once", "--every", "0.05")
    code, out, err = logtool(*top)
    assert (code, err) == (0, "")
    assert out.startswith("published 0/s, delivered 0/s, ")
    assert "\nPROTOCOL " in out
    code, out, _ = logtool(*top, "-o", "json")
    (item,) = json.loads(out)["items"]
    assert {"published_per_second", "protocols", "topics"} <= set(item)
    code, out, _ = logtool(*top, "-o", "csv")
    assert out.splitlines()[0].startswith("protocol,connections,published_per_second")


def test_what_is_refused(tmp_path: Path, process: ServerProcess, logtool: Logtool) -> None:
    assert logtool("--data-dir", str(process.data_dir), "-o", "json", "top")[0] == 2
    code, _, err = logtool("--data-dir", str(tmp_path), "top", "--once")
    assert (code, "no server" in err) == (3, True)
    code, _, err = logtool("--server", "http://127.0.0.1:1", "top", "--once")
    assert (code, "no server answers" in err) == (3, True)


def test_in_a_pipe_one_follows_the_other(process: ServerProcess) -> None:
    with Started(command(process, "-o", "jsonl"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        for _ in range(2):
            assert json.loads(top.stdout.readline())["seconds"] > 0
        top.send_signal(signal.SIGINT)
        assert top.wait(30) == 130


def test_on_a_terminal_until_ctrl_c(process: ServerProcess) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with Started(command(process), cwd=ROOT, stdout=theirs, env=environment) as top:
        os.close(theirs)
        seen = b""
        while seen.count(b"PROTOCOL") < 2:
            seen += os.read(ours, 65536)
        top.send_signal(signal.SIGINT)
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # the other end is closed
            pass
        assert top.wait(30) == 130
    os.close(ours)
    assert b"measuring" in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is shown again"

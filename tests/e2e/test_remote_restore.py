"""A machine is lost: its log comes back from the bucket, on another one, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.testing import ServerProcess
from tests.e2e.test_shipping_s3 import CREDENTIALS, OFF, publish, remote, settings, wait_for, wait_stored
from tests.s3_server import BUCKET, s3_server
from tools.logtool.run import run

pytest.importorskip("obstore", reason="S3 IS NOT TESTED: pip install -e '.[remote]'")

pytestmark = [pytest.mark.whole, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """The port of a server of S3."""
    with s3_server() as port:
        yield port


@pytest.fixture
def logtool(store: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command that has to succeed; what it prints, as lines of JSON."""
    monkeypatch.setenv("QUINTLOG_REMOTE_URL", f"s3://{BUCKET}/lost")
    monkeypatch.setenv("QUINTLOG_REMOTE_ENDPOINT", f"http://127.0.0.1:{store}")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    def call(*words: str) -> list[Any]:
        code = run([*words, "-o", "jsonl"])
        captured = capfd.readouterr()
        assert code == 0, captured.err
        return [json.loads(line) for line in captured.out.splitlines()]

    return call


def positions(group: dict[str, Any]) -> list[int]:
    """The next offset of each of its partitions."""
    return [item["next_offset"] for item in group["positions"]]


def test_a_lost_machine(tmp_path: Path, store: int, logtool: Any) -> None:
    lost, restored = tmp_path / "lost", tmp_path / "restored"
    with ServerProcess(lost, settings(store, "lost"), environment=CREDENTIALS) as process:
        process.admin("POST", "/v1/topics", {"name": "t0", "partitions": 1})
        process.admin("POST", "/v1/groups", {"name": "billing", "topic": "t0"})
        for number in range(60):
            publish(process, f"t{number % 3}", [f"{number} " + "x" * 5000] * 2)
        process.admin("POST", "/v1/groups/billing/positions", {"positions": [{"partition": 0, "next_offset": 7}]})
        group = process.admin("GET", "/v1/groups/billing")
        wait_stored(process)
        for number in range(5):  # of which the bucket has some, or none
            publish(process, "t0", [f"late {number}"])
        process.kill()
        (status,) = logtool("remote", "status")
        assert (status["epoch"], status["topics"], status["released"]) == (1, 3, False)
        logtool("remote", "verify", "--full")
        (report,) = logtool("remote", "restore", str(restored))
        assert (report["topics"], report["damaged"]) == (3, 0)
        items = logtool("--data-dir", str(restored), "verify")
        assert len(items) == 3
        before = {name: logtool("--data-dir", str(lost), "cat", name) for name in ("t0", "t1", "t2")}
        with ServerProcess(restored, {**OFF, "topics": {"segment_bytes": "64KiB"}}) as other:
            same = other.admin("GET", "/v1/groups/billing")
            assert positions(same) == positions(group) == [7]
            publish(other, "t0", ["goes on"])
        for name, records in before.items():
            after = logtool("--data-dir", str(restored), "cat", name)
            *kept, last = after if name == "t0" else [*after, None]
            assert kept == records[: len(kept)]
            assert len(kept) >= 40
            if last is not None:
                assert last["value"] == "goes on"
                assert last["offset"] > records[-1]["offset"]
        # It is no primary of this bucket; the machine before is, should it come back.
        with ServerProcess(restored, settings(store, "lost"), environment=CREDENTIALS) as other:
            wait_for(other, "refused", lambda found: found["phase"] == "stopped")
            assert "another log is stored there" in remote(other)["problem"]
        process.restart()
        wait_stored(process)

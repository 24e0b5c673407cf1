"""Names of topics that a shell offers: from a server, from files, never late, never anything that a shell would run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from netserver.testing import server
from tests.blipmq_peer import Peer
from tools.logtool.lib import completing

pytestmark = pytest.mark.whole

NAMES = ("orders", "orders.eu", "other", "o$(reboot)", "o;x", "o x", "o\nx", "o'x", "-o")


def offered(line: str) -> list[str]:
    """What the program answers a shell, waiting for the log as long as this machine needs."""
    code = (
        "import sys; from tools.logtool.lib import completing; from tools.logtool.run import run; "
        "completing.PATIENCE_S = 60; sys.exit(run())"
    )
    environment = os.environ | {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        "_LOGTOOL_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stderr == ""
    return [word.removeprefix("plain,") for word in done.stdout.splitlines() if word]


def test_names_of_a_server_and_of_files(tmp_path: Path) -> None:
    place = f"--data-dir {tmp_path}/data"
    with server(tmp_path / "data") as process:
        for name in NAMES:
            process.admin("POST", "/v1/topics", {"name": name})
        address = f"--server {process.admin_url} --token-file {tmp_path}/data/admin.token"
        assert offered(f"logtool {address} topics show ord") == ["orders", "orders.eu"]
        assert offered(f"logtool {place} publish ord") == ["orders", "orders.eu"]
    for command in ("cat", "tail", "dump topic", "topics set", "topics trim", "topics delete"):
        assert offered(f"logtool {place} {command} o") == ["orders", "orders.eu", "other"], command
    assert offered(f"logtool {place} topics create o") == []


def test_ids_of_subscriptions(tmp_path: Path) -> None:
    place = f"--data-dir {tmp_path}/data"
    with server(tmp_path / "data") as process:
        with Peer(process.address("blipmq")) as peer:
            ids = sorted(str(peer.subscribe(b"t")) for _ in range(3))
        assert sorted(offered(f"logtool {place} subscriptions show ")) == ids
        address = f"--server {process.admin_url} --token-file {tmp_path}/data/admin.token"
        assert offered(f"logtool {address} subscriptions delete {ids[0]}") == [
            one for one in ids if one.startswith(ids[0])
        ]
    for command in ("show", "pending", "reset", "redrive", "delete"):
        assert sorted(offered(f"logtool {place} subscriptions {command} ")) == ids, command


def test_what_a_measurement_goes_through() -> None:
    for command in ("publish", "consume", "latency"):
        assert offered(f"logtool bench {command} --via f") == ["figg", "fujin"]


def test_nothing_where_the_log_cannot_be_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in ("--data-dir /nowhere", f"--data-dir {tmp_path}", f"--data-dir {tmp_path}/file", "--context nowhere"):
        assert offered(f"logtool {place} cat o") == []
    assert offered("logtool --server http://127.0.0.1:1 topics show o") == []


def test_a_silent_server_is_not_waited_for() -> None:
    """Its answer never comes: the test would end by its own limit of time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = "logtool --server http://{}:{} topics show o".format(*silent.getsockname())
        environment = os.environ | {"COMP_WORDS": line, "COMP_CWORD": "5", "_LOGTOOL_COMPLETE": "bash_complete"}
        done = subprocess.run(
            [sys.executable, "-m", "tools.logtool"], env=environment, capture_output=True, timeout=60, check=True
        )
        assert (done.stdout, done.stderr) == (b"\n", b"")
    assert completing.PATIENCE_S < 1

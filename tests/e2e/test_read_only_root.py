"""The server where nothing can be written but its data directory, as `podman run --read-only` starts it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netserver.client import blocking
from netserver.testing import ROOT, ServerProcess

ALONE = """
mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,ro,bind / || exit 77
for folder in /tmp /var/tmp "$HOME" "$2"; do
    if touch "$folder/written" 2>/dev/null; then rm "$folder/written"; echo "$folder can be written to" >&2; exit 78; fi
done
shift 2
exec "$@"
"""


def read_only(data_dir: Path, *command: str) -> tuple[str, ...]:
    """The command in a mount namespace of its own, where only the data directory can be written to."""
    return ("unshare", "--mount", "sh", "-c", ALONE, "sh", str(data_dir), str(ROOT), *command)


def namespaces() -> bool:
    """Whether this user may have one."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = [
    pytest.mark.whole,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(not namespaces(), reason="needs root and mount namespaces"),
]


def test_nothing_is_written_beside_the_data_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    program = (sys.executable, "-P", str(ROOT / "quintlog.py"))
    with ServerProcess(data_dir, command=read_only(data_dir, *program, "engine-server")) as process:
        for protocol in ("figg", "blipmq"):
            with blocking.connect(protocol, "{}:{}".format(*process.address(protocol))) as client:
                client.publish("orders", b"one")
        process.admin("POST", "/v1/reload")
        checked = subprocess.run(
            read_only(data_dir, *program, "logtool", "--data-dir", str(data_dir), "check"),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
        process.restart()  # in order: all is closed, and opened again
        assert process.admin("GET", "/v1/topics")["items"][0]["name"] == "orders"
        assert process.stop(signal.SIGTERM) == 0
        assert "Traceback" not in process.log_text

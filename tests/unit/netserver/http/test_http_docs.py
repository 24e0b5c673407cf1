"""Every shell block of docs/http.md is run as it is written, but for the address, against a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from netserver.testing import server

pytestmark = pytest.mark.whole

PAGE = Path(__file__).resolve().parents[4] / "docs" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None and "QUINTLOG_CI" not in os.environ, reason="needs curl")
def test_shell_blocks(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    (tmp_path / "records.jsonl").write_text("".join(f'{{"value":"order {n}","key":"{n}"}}\n' for n in range(50)))
    (tmp_path / "access.log").write_bytes(b"GET /\nGET /a\n")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / "backups").mkdir()
    with server(tmp_path / "data", {"admin": {"backup_dir": str(tmp_path / "backups")}}) as process:
        script = "\n".join(["set -euo pipefail", 'curl() { command curl -sS --fail-with-body "$@"; echo; }', *blocks])
        script = script.replace("http://127.0.0.1:9180", process.admin_url)
        script = script.replace("follow=true", "follow=true&timeout_ms=100")
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done
        assert done.stdout.count(b'"records": ') >= 3
        assert done.stdout.count(b'"key":"42"') == 3
        assert done.stdout.count(b'"value":"GET /a"') == 3
        assert done.stdout.count(b'"name": "billing"') == 2
        assert b'"lag": 43' in done.stdout
        assert b'"deleted": "billing"' in done.stdout
        assert done.stdout.count(b'{"done":true}') == 4
        assert (tmp_path / "backups" / "monday" / "backup.json").is_file()
        assert (tmp_path / "record").read_bytes() == b"order 16\n"

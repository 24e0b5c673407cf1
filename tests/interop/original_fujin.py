"""The original (Go): a checkout of the commit of 2025-05-18 (077855f), and programs of ours that are built inside it.

QUINTLOG_FUJIN=DIRECTORY names it; Go and the modules that it requires have to be there, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(os.environ.get("QUINTLOG_FUJIN", "/nowhere"))
BUILD_S = 600
ONE_THREAD = {**os.environ, "GOMAXPROCS": "1"}
"""The original's writing loop, in its client and its server, waits although there is something to send when that was
put there between two turns of the loop: the call, or the answer, comes with the next one or never. It takes a thread
that is held up just there (on a busy machine) while another one goes on.
"""

NEEDED = [
    pytest.mark.skipif(
        not (CHECKOUT / "client").is_dir() or shutil.which("go") is None, reason="the original or Go is not here"
    ),
]


def built(name: str, directory: Path) -> Path:
    """The program ``tests/interop/NAME/main.go``, built as if it lay in the checkout."""
    source = Path(__file__).parent / name / "main.go"
    overlay = directory / "overlay.json"
    place = CHECKOUT.resolve() / "cmd" / f"quintlog_{name}"
    overlay.write_text(json.dumps({"Replace": {str(place / "main.go"): str(source)}}))
    command = ["go", "build", f"-overlay={overlay}", "-o", str(directory / name), str(place)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=BUILD_S)
    if "no required module" in done.stderr or "dial tcp" in done.stderr:
        pytest.skip("the original's modules are not here")
    assert done.returncode == 0, done.stderr
    return directory / name

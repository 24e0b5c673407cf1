"""The nightly run goes on behind whatever fails in it, and says what that was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import nightly

GOOD = "def test_a():\n    print('3 rounds of it')\n"
BAD = "def test_b():\n    print('7 rounds')\n    assert not 'what was wrong'\n"
CRASH = "import os\n\n\ndef test_c():\n    os.abort()\n"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Below the tests, as the run is for those."""
    path = nightly.ROOT / "build" / "nightly-tests"
    path.mkdir(parents=True, exist_ok=True)
    yield path
    shutil.rmtree(path)


def test_it_goes_on_and_says_what_failed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("test_a.py", BAD), ("test_b.py", CRASH), ("test_c.py", GOOD)):
        (directory / name).write_text(text)
    assert nightly.main([str(directory)]) == 1
    told = capsys.readouterr().out
    assert "3 files, 2 failed" in told
    assert "    3 rounds of it\n" in told
    assert "    7 rounds\n" in told
    assert told.rstrip().splitlines()[-1].startswith("FAILED ")
    assert "what was wrong" in told
    (directory / "test_a.py").unlink()
    assert nightly.main([str(directory / "test_c.py")]) == 0

"""Every Python block of the pages on clients is run as it is written, but for the addresses, against a server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from netserver.testing import ServerProcess, server
from tests.processes import Started

pytestmark = pytest.mark.whole

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("../README.md", "clients.md", "figg.md", "reliably.md", "tank.md", "blipmq.md", "fujin.md", "kafka.md")


def blocks() -> list[object]:
    """Each block with the page and line where it stands."""
    found = []
    for name in PAGES:
        text = (DOCS / name).read_text()
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if "spark." in match[1]:  # it has tests of its own
                continue
            line = text.count("\n", 0, match.start()) + 2
            found.append(pytest.param(match[1], id=f"{name}:{line}"))
    return found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("docs")
    with server(place / "data") as running:
        for topic in ("orders", "greetings"):
            running.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": "zero"}, {"value": "one"}]})
        yield running


@pytest.mark.parametrize("code", blocks())
def test_python_blocks(code: str, process: ServerProcess, tmp_path: Path) -> None:
    if "kafka" in code:
        pytest.importorskip("confluent_kafka" if "confluent_kafka" in code else "aiokafka")
    config = ServerConfig()
    for name in PROTOCOL_SECTIONS:
        code = code.replace(str(config.listener(name).listen), "{}:{}".format(*process.address(name)))
    code = code.replace("data/fujin-certificate.pem", str(process.data_dir / "fujin-certificate.pem"))
    path = tmp_path / "example.py"
    path.write_text(code)
    endless = '"offset": "earliest"}' in code  # a stream that waits for further records for ever
    command = [sys.executable, "-u", "-W", "error", str(path)]
    root = str(DOCS.parent)
    with Started(
        command, cwd=tmp_path, env={"PYTHONPATH": root}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        assert program.stdout is not None
        said = []
        for line in program.stdout:
            said.append(line)
            if endless and line.endswith(" one\n"):
                program.kill()
                return
    assert program.returncode == 0, "".join(said)


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    named = set(re.findall(r"^\| \[(.*?)\]", index, re.M))
    assert {page.name for page in DOCS.glob("*.md") if not page.name.startswith("spark-")} - named == {"README.md"}
    assert "(docs/README.md)" in (DOCS.parent / "README.md").read_text()

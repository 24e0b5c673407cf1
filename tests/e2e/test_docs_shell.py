"""Blocks of the pages: each is run as it is written, but for addresses and places; or it is said why not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, Settings, server
from tests.shell_blocks import Shell, blocks, matches, steps

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
RUN_ELSEWHERE = {
    "README.md": "e2e/test_tour.py",
    "docs/arrow.md": "spark/test_arrow_scan.py",
    "docs/http.md": "unit/netserver/http/test_http_docs.py",
    "docs/spark.md": "spark/test_tutorial.py",
    "docs/spark-jobs.md": "spark/test_jobs.py",
}
"""Pages with commands of a shell that another test runs."""
NOT_RUN = {
    "python3 -m venv /opt/quintlog": "installs a service, which needs systemd as the first process",
    "make wheel ": "needs a builder of images, and one to run them",
    "make test ": "whoever runs this test has run it",
    "make serve ": "test_setup.py",
}
"""How a block begins that nothing runs, and why."""
NUMBER = re.compile(r"\d[\d,.]*(?: (?:[KMG]i)?B\b)?")


def shape(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, and the widths that follow from them."""
    lines = (NUMBER.sub("N", line).replace("/s of N ms", "/s") for line in text.strip().splitlines())
    return [re.sub(r"\s+", " ", line).strip() for line in lines]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


class Reader:
    """Somebody who follows a page, in a folder where `data` is the log of a server that runs."""

    def __init__(self, folder: Path, process: ServerProcess) -> None:
        self._folder = folder
        self._shell = Shell(folder, folder / "bin")
        self._places = {
            "/etc/quintlog.toml": f"{folder}/quintlog.toml",
            "/etc/quintlog": str(folder),
            "/var/lib/quintlog": str(process.data_dir),
            "http://127.0.0.1:9180": process.admin_url,
            "http://10.0.0.5:9180": process.admin_url,
            "sudo tee /etc/systemd/system/": f"tee {folder}/",
        }
        self.close = self._shell.close

    def run(self, command: str) -> str:
        """What it prints; it has to go well."""
        for written, here in self._places.items():
            command = command.replace(written, here)
        output = self._shell.run(command)
        assert self._shell.status == 0, f"{command}\n{output}"
        return output

    def follow(self, text: str) -> None:
        """Runs the blocks of a page and compares what they print, where the page says it."""
        for step in steps(text):
            output = self.run(step.command)
            if step.expected:
                expected, actual = shape(step.expected), shape(output)
                assert matches(expected, actual), (
                    f"line {step.line}: {step.command}\n{step.expected}\n--- now\n{output}"
                )
        for block in blocks(text, "sh"):
            if not block.startswith(tuple(NOT_RUN)):
                self.run(block.strip())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def with_server(folder: Path, follow: Callable[[Reader, ServerProcess], None], settings: Settings = None) -> None:
    with server(folder / "data", settings) as process:
        reader = Reader(folder, process)
        try:
            reader.run("export QUINTLOG_DATA_DIR=data")
            follow(reader, process)
        finally:
            reader.close()


def test_access(folder: Path) -> None:
    def follow(reader: Reader, _process: ServerProcess) -> None:
        reader.follow(page("access.md"))
        assert tomllib.loads((folder / "quintlog.toml").read_text()) == {"access": {"file": str(folder / "access")}}

    (folder / "quintlog.toml").write_text("")
    (folder / "access").write_text("")
    with_server(folder, follow, {"access": {"file": str(folder / "access")}})
    lines = (folder / "access").read_text()
    assert "shop" in lines
    assert '"bytes_in_per_s": 5000000' in lines


def test_keys_of_kafkas_clients(folder: Path) -> None:
    (folder / "access").write_text("")
    with_server(folder, lambda reader, _process: reader.follow(page("kafka.md")))
    assert "shop" in (folder / "access").read_text()


def test_operating_and_console(folder: Path) -> None:
    def follow(reader: Reader, process: ServerProcess) -> None:
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "one"}]})
        reader.follow(page("operating.md"))
        reader.follow(page("console.md"))

    with_server(folder, follow)
    assert (folder / "restored").is_dir()
    assert "scrape_configs" in (folder / "prometheus.yml").read_text()
    assert json.loads((folder / "quintlog.json").read_text())["panels"]


def test_logtool(folder: Path) -> None:
    def follow(reader: Reader, process: ServerProcess) -> None:
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "one"}]})
        process.admin("POST", "/v1/topics", {"name": "clicks", "partitions": 4, "config": {"retention_ms": "7d"}})
        (folder / "shop.token").write_text(process.token)
        reader.run("mkdir -p ~/.local/share/bash-completion/completions; chmod 600 shop.token")
        reader.run("logtool definitions export >topics.json")
        before, _, after = page("logtool.md").partition("$ logtool context add")
        reader.follow(before)
        reader.run("unset QUINTLOG_DATA_DIR")  # it would hold before the context
        reader.follow("```console\n$ logtool context add" + after)

    with server(folder / "other") as process:
        process.admin("POST", "/v1/topics", {"name": "orders"})
    with_server(folder, follow)
    assert "ExecStart=" in (folder / "quintlog.service").read_text()


def test_settings_are_settings() -> None:
    """Blocks of TOML are read as a server reads its file; blocks of JSON are documents."""
    for path in (ROOT / "docs").glob("*.md"):
        for block in blocks(path.read_text(), "toml"):
            tomllib.loads(block)
        for block in blocks(path.read_text(), "json"):
            while block.strip():
                _, end = json.JSONDecoder().raw_decode(block)
                block = block[end:].lstrip()


def test_every_block_is_run_or_it_is_said_why_not() -> None:
    here = Path(__file__).read_text()
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        fences = re.findall(r"^```(.*)$", text, re.M)
        assert all(fences[::2]), f"{name}: a block has no language"
        for language in ("sh", "console"):
            for block in blocks(text, language):
                if block.startswith(tuple(NOT_RUN)) or (language == "console" and block.startswith("$ pip install")):
                    continue
                test = RUN_ELSEWHERE.get(name)
                runs = (TESTS / test).read_text() if test is not None else here
                assert path.name in runs, f"{name}: nothing runs {block}"


@pytest.mark.slow
def test_tls(folder: Path) -> None:
    """A private authority by two commands, the server's file, a client, and logtool with a context."""
    text = page("tls.md")
    shell_blocks = [block for block in blocks(text, "sh") if block.startswith("logtool certificates")]
    with server(folder / "first") as process:
        reader = Reader(folder, process)
        try:
            for block in shell_blocks:
                reader.run(block.strip().replace("logs.example.com", "localhost"))
        finally:
            reader.close()
    made = folder / "certificates"
    for file, name in (("ca.pem", "ca.pem"), ("billing.pem", "app.pem"), ("billing.key", "app.key")):
        shutil.copy(made / file, folder / name)
    (settings,) = blocks(text, "toml")
    figg = tomllib.loads(settings.replace("/etc/quintlog", str(folder)))["figg"] | {"listen": "127.0.0.1:0"}
    admin = {key: value for key, value in figg.items() if key != "listen"}
    with server(folder / "data", {"figg": figg, "admin": admin}) as process:
        (client,) = (block for block in blocks(text, "python") if "logs.example.com" in block)
        program = client.replace("logs.example.com:8119", "localhost:{}".format(process.address("figg")[1]))
        command = [sys.executable, "-W", "error", "-c", f"import quintlog\n{program}"]
        done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr

"""Every command against a server whose listeners all want TLS and a client certificate, and what is said without."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.config.sections import PROTOCOL_SECTIONS
from netserver.testing import ServerProcess, server
from tests.certificates import Authority
from tests.unit.conftest import Logtool
from tools.logtool.cli import COMMANDS
from tools.serving import dialled

LOCAL = {
    "archive-segments", "archive-table", "backup", "certificates", "context", "dump", "generate", "import", "repair",
    "remote", "restore", "spark", "tail", "upgrade", "verify",
}  # fmt: skip
"""Commands that ask no server, and `tail`, which does not end (`cat` reads as it does)."""


class Secured:
    """A server and the words that open it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "authority")
        certificate, key = self.authority.signed("server")
        self.own = self.authority.signed("client")
        section: dict[str, Any] = {
            "tls_certificate": certificate,
            "tls_key": key,
            "tls_client_ca": self.authority.ca,
        }
        settings: dict[str, dict[str, Any]] = {name: dict(section) for name in (*PROTOCOL_SECTIONS, "admin")}
        settings["blipmq"]["allowed_api_keys"] = "a key of many letters"
        self.settings = settings
        self.key_file = directory / "api.key"
        self.key_file.write_text("a key of many letters\n")
        self.words = ("--ca", self.authority.ca, "--cert", self.own[0], "--key", self.own[1])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def process(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("data") / "data", secured.settings) as running:
        yield running


def test_every_command_works(logtool: Logtool, secured: Secured, process: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_bytes(b"one\n")
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps({"schema": 1, "topics": []}))
    publish = ("--api-key-file", str(secured.key_file), "publish", "orders", str(file), "--via")
    bench = ("--api-key-file", str(secured.key_file), "bench", "publish", "--records", "10", "--via")
    calls: dict[str, list[tuple[str, ...]]] = {
        "topics": [("topics", "create", "orders"), ("topics", "list"), ("topics", "show", "orders")],
        "publish": [(*publish, protocol) for protocol in ("figg", "tank", "blipmq", "fujin")],
        "bench": [(*bench, protocol) for protocol in ("figg", "tank", "blipmq", "fujin")],
        "status": [("status",)],
        "top": [("top", "--once", "--every", "0.1")],
        "check": [("check", "--disk-free", "0")],
        "cat": [("cat", "orders")],
        "connections": [("connections", "list")],
        "console": [("console",)],
        "sessions": [("sessions", "list")],
        "commits": [("commits", "list")],
        "subscriptions": [("subscriptions", "list")],
        "groups": [("groups", "list")],
        "keys": [("keys", "list")],
        "definitions": [("definitions", "export")],
        "config": [("config", "reload")],
        "debug": [("debug", "bundle", "-O", str(tmp_path / "bundle.tar.gz"))],
    }
    assert set(calls) | LOCAL == set(COMMANDS), "every command is tried"
    where = ("--data-dir", str(process.data_dir))
    for call in (call for group in calls.values() for call in group):
        code, _, err = logtool(*where, *secured.words, *call)
        wanted = 6 if call[0] == "keys" else 0  # it says that the server has no file of keys
        assert code == wanted, (call, err)


def test_by_url_context_and_environment(
    logtool: Logtool, secured: Secured, process: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token = ("--token-file", str(process.data_dir / "admin.token"))
    by_url = ("--server", process.admin_url, *token)
    file = tmp_path / "one"
    file.write_bytes(b"one\n")
    publish = ("publish", "lines", str(file))
    key = ("--api-key-file", str(secured.key_file))
    assert logtool(*by_url, *secured.words, *publish)[0] == 0
    code, _, err = logtool("context", "add", "shop", "--use", *by_url, *secured.words, *key)
    assert (code, err) == (0, "added shop and chosen\n")
    assert logtool("status")[0] == 0
    assert logtool(*publish, "--via", "blipmq")[0] == 0
    assert secured.authority.ca in logtool("context", "list")[1]
    assert secured.key_file.read_text().strip() not in (tmp_path / "quintlog" / "contexts.json").read_text()
    assert logtool("context", "use", "--none")[0] == 0
    for name, value in (("CA", secured.authority.ca), ("CERT", secured.own[0]), ("KEY", secured.own[1])):
        monkeypatch.setenv(f"QUINTLOG_{name}", value)
    monkeypatch.setenv("QUINTLOG_API_KEY", secured.key_file.read_text().strip())
    assert logtool(*by_url, *publish, "--via", "blipmq")[0] == 0
    monkeypatch.setenv("QUINTLOG_API_KEY", "another key")
    assert logtool(*by_url, *publish, "--via", "blipmq")[0] == 4


def test_what_is_said_without_the_right_words(logtool: Logtool, secured: Secured, process: ServerProcess) -> None:
    url = process.admin_url
    ca = ("--ca", secured.authority.ca)
    for words, text in (
        ((), "its certificate is of no authority that is trusted here: --ca names the file of its authority"),
        (ca, "the server wants a client certificate: --cert and --key"),
    ):
        for where in (("--server", url), ("--data-dir", str(process.data_dir))):
            code, _, err = (
                logtool(*where, *words, "topics", "list")
                if where[0] == "--server"
                else logtool(*where, *words, "connections", "list")
            )
            assert (code, err.splitlines()[0]) == (3, f"logtool: {url}: {text}"), where
    code, _, err = logtool("--server", url.replace("https", "http"), "status")
    assert (code, err.splitlines()[0]) == (3, f"logtool: {url.replace('https', 'http')} speaks TLS")
    host, port = process.address("figg")
    code, _, err = logtool("--server", f"https://{host}:{port}", *secured.words, "status")
    assert code == 3
    code, _, err = logtool("--key", secured.own[1], "--server", url, "status")
    assert (code, "--cert is missing" in err) == (2, True)


def test_a_plain_server_and_other_protocols_are_told(logtool: Logtool, secured: Secured, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as process:
        code, _, err = logtool("--server", process.admin_url.replace("http", "https"), *secured.words, "status")
        assert (code, "does not speak TLS" in err, process.admin_url in err) == (3, True, True)
        host, port = process.address("tank")
        code, _, err = logtool("--server", f"http://{host}:{port}", "status")
        assert (code, err.splitlines()[0]) == (
            3,
            f"logtool: http://{host}:{port} is no log server: it speaks TANK",
        )
        file = tmp_path / "one"
        file.write_bytes(b"one\n")
        publish = ("--data-dir", str(process.data_dir), *secured.words, "publish", "orders", str(file))
        assert logtool(*publish)[0] == 0, "its own server says that this listener speaks no TLS"
        assert logtool(*publish, "--via", "fujin")[0] == 0, "its own certificate is in its directory"
        address = "{}:{}".format(*process.address("figg"))
        code, _, err = logtool(*publish, "--via", f"figg={address}")
        assert (code, err.splitlines()[0]) == (
            3,
            f"logtool: {address} does not speak TLS: leave out --ca and --cert, or say --ca off (it speaks Figg)",
        )


def test_a_server_that_listens_everywhere_is_found(logtool: Logtool, tmp_path: Path) -> None:
    settings = {"figg": {"listen": "0.0.0.0:0"}, "admin": {"listen": "0.0.0.0:0"}}
    file = tmp_path / "one"
    file.write_bytes(b"one\n")
    with server(tmp_path / "data", settings, ("--insecure",)) as process:
        assert logtool("--data-dir", str(process.data_dir), "publish", "orders", str(file))[0] == 0
        token = ("--token-file", str(process.data_dir / "admin.token"))
        assert logtool("--server", f"http://0.0.0.0:{process.ports['admin']}", *token, "status")[0] == 0
    assert dialled("[::]:8119") == "[::1]:8119"
    assert dialled("http://0.0.0.0:9180") == "http://127.0.0.1:9180"
    assert dialled("10.0.0.0:1") == "10.0.0.0:1"


def test_a_certificate_that_was_renewed_counts_after_sighup(
    logtool: Logtool, secured: Secured, process: ServerProcess
) -> None:
    first = logtool("--data-dir", str(process.data_dir), *secured.words, "check", "--disk-free", "0")
    secured.authority.signed("server", hosts=("elsewhere",))
    os.kill(process.pid, signal.SIGHUP)
    words = ("--data-dir", str(process.data_dir), *secured.words)
    while logtool(*words, "status")[0] == 0:
        pass
    assert "--server-name" in logtool(*words, "connections", "list")[2]
    assert logtool("--server-name", "elsewhere", *words, "connections", "list")[0] == 0
    assert first[0] == 0

"""Which log a command acts on: every command, with every way of naming a log, and what changed where.

All logs here are copies of one, with the same topics and the same token, so whoever is asked by mistake would obey. Two
servers are named by nobody: `default` listens where a command goes to when no log is named, `other` where the server
of some directory listened once.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.files.lock import DirectoryLock, identity_of
from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool
from tests.unit.tools.logtool.test_logtool_import import HEADER, record
from tests.unit.tools.logtool.test_logtool_sessions import stream
from tools.logtool.lib import address
from tools.logtool.lib.errors import Failure

Kind = Literal["served", "held", "quiet", "url", "files", "no log", "dead"]
"""What a name leads to: a directory with its server (held: without an admin address, quiet: without listeners), a
server's address, a directory without a server, no directory of a log, an address where no log server answers."""
CASES = 24
"""Subscriptions and sessions, so that each way of naming the log has one of its own to remove."""


@dataclass
class World:
    """The servers, and what commands need."""

    root: Path
    template: Path
    named: ServerProcess
    held: ServerProcess
    quiet: ServerProcess
    other: ServerProcess
    default: ServerProcess
    web: str
    made: int = 0

    def copy(self, source: Path | None = None) -> Path:
        """A new directory with what is in a log: of one that was killed, or of one that is running."""
        self.made += 1
        target = self.root / f"copy-{self.made}"
        shutil.copytree(source or self.template, target)
        return target


def state_of(process: ServerProcess) -> str:
    """All that a command could change in a server."""
    paths = ("topics", "subscriptions", "sessions", "keys")
    found = {path: process.admin("GET", f"/v1/{path}")["items"] for path in paths}
    for session in found["sessions"]:
        session.pop("expires_in_seconds")
    for subscription in found["subscriptions"]:
        del subscription["lag_seconds"], subscription["lag_trend"]
    return json.dumps(found, indent=1)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """A web server; its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield "http://{}:{}".format(*web.server_address[:2])
        web.shutdown()
        thread.join()


def told(pages: dict[str, str]) -> contextlib.AbstractContextManager[str]:
    """A web server that is none of ours, with these pages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None: ...

    return serving(Handler)


def forwarded(place: tuple[str, int]) -> contextlib.AbstractContextManager[str]:
    """Another port that leads to a server's admin address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            connection = http.client.HTTPConnection(*place, timeout=20)
            connection.request("GET", self.path, headers={"Authorization": self.headers.get("Authorization", "")})
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.end_headers()
            self.wfile.write(answer.read())
            connection.close()

        def log_message(self, *_: object) -> None: ...

    return serving(Handler)


def make_template(path: Path) -> None:
    with server(path, {"reliably": {"session_expiry_ms": "1h"}}) as process, contextlib.ExitStack() as stack:
        for topic in ("orders", "trimmed"):
            process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": str(n)} for n in range(64)]})
        peer = stack.enter_context(Peer(process.address("blipmq")))
        assert [peer.subscribe(b"orders") for _ in range(CASES)] == list(range(1, CASES + 1))
        for number in range(CASES):
            wanted = {"uuid": f"s{number}", "params": {"topic": "orders", "offset": 1, "count": 9}}
            stream(process.address("reliably"), wanted, 1).close()
        for number in range(CASES):
            process.admin("POST", "/v1/topics", {"name": f"gone{number}"})
        process.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("addresses")
    make_template(root / "template")
    off = {protocol: {"listen": "off"} for protocol in ("figg", "tank")}

    def begun(name: str, **settings: Any) -> ServerProcess:
        shutil.copytree(root / "template", root / name)
        own = {"blipmq": {"key_file": str(root / f"{name}.keys")}, "reliably": {"session_expiry_ms": "1h"}}
        (root / f"{name}.keys").touch()
        return stack.enter_context(server(root / name, own | settings))

    with contextlib.ExitStack() as stack:
        servers = {name: begun(name) for name in ("named", "other", "default")}
        servers |= {"held": begun("held", admin={"listen": "off"}), "quiet": begun("quiet", **off)}
        yield World(root, root / "template", **servers, web=stack.enter_context(told({})))


@dataclass
class Named:
    """A log under some name: words of the command line, variables, what it leads to."""

    kind: Kind
    words: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: ServerProcess | None = None
    data_dir: Path | None = None


def _directory(data_dir: Path, kind: Kind = "files") -> Named:
    return Named(kind, ("--data-dir", str(data_dir)), data_dir=data_dir)


def _killed(world: World, url: str, listeners: dict[str, str]) -> Path:
    """A directory whose server was killed, and whose addresses belong to somebody else by now, or to nobody."""
    data_dir = world.copy()
    document = json.loads((data_dir / "server.json").read_text())
    (data_dir / "server.json").write_text(json.dumps(document | {"admin": url, "listeners": listeners}))
    return data_dir


def _foreign(world: World) -> Named:
    there = {name: "{}:{}".format(*world.other.address(name)) for name in ("figg", "tank")}
    return _directory(_killed(world, world.other.admin_url, there))


def _stopped(world: World) -> Named:
    data_dir = world.copy()
    (data_dir / "server.json").unlink()
    return _directory(data_dir)


def _served(process: ServerProcess, kind: Kind = "served") -> Named:
    return Named(kind, ("--data-dir", str(process.data_dir)), process=process)


def _url(process: ServerProcess) -> Named:
    token = str(process.data_dir / "admin.token")
    return Named("url", ("--server", process.admin_url, "--token-file", token), process=process)


def _by_environment(world: World, found: Named, **more: str) -> Named:
    names = {"--data-dir": "QUINTLOG_DATA_DIR", "--server": "QUINTLOG_SERVER", "--token-file": "QUINTLOG_TOKEN_FILE"}
    pairs = zip(found.words[::2], found.words[1::2], strict=True)
    environment = {names[option]: value for option, value in pairs} | more
    return Named(found.kind, (), environment, found.process, found.data_dir)


def _by_context(world: World, found: Named) -> Named:
    fields = {
        option[2:].replace("-", "_"): value for option, value in zip(found.words[::2], found.words[1::2], strict=True)
    }
    home = world.root / f"home-{len(list(world.root.iterdir()))}"
    (home / "quintlog").mkdir(parents=True)
    document = {"schema": 1, "current": "c", "contexts": {"c": fields}}
    (home / "quintlog" / "contexts.json").write_text(json.dumps(document))
    environment = {"XDG_CONFIG_HOME": str(home)}
    return Named(found.kind, ("--context", "c"), environment, found.process, found.data_dir)


def _chosen(world: World, found: Named) -> Named:
    by_name = _by_context(world, found)
    return Named(by_name.kind, (), by_name.environment, by_name.process, by_name.data_dir)


def _empty(world: World) -> Path:
    world.made += 1
    data_dir = world.root / f"empty-{world.made}"
    data_dir.mkdir()
    return data_dir


def _closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "http://{}:{}".format(*listener.getsockname())


NAMES: dict[str, Callable[[World], Named]] = {
    "directory, served": lambda world: _served(world.named),
    "directory, its server has no admin address": lambda world: _served(world.held, "held"),
    "directory, its server has no listeners": lambda world: _served(world.quiet, "quiet"),
    "directory, stopped": _stopped,
    "directory, killed": lambda world: _directory(_killed(world, _closed_url(), {"figg": "127.0.0.1:1"})),
    "directory, copied from a live one": lambda world: _directory(world.copy(world.other.data_dir)),
    "directory, another server has its port": _foreign,
    "directory, a web server has its port": lambda world: _directory(_killed(world, world.web, {})),
    "directory, not there": lambda world: _directory(world.root / "nowhere", "no log"),
    "directory, empty": lambda world: _directory(_empty(world), "no log"),
    "address": lambda world: _url(world.named),
    "address, nobody there": lambda world: Named("dead", ("--server", _closed_url())),
    "address, no log server": lambda world: Named("dead", ("--server", world.web)),
    "context": lambda world: _by_context(world, _url(world.named)),
    "context, directory": lambda world: _by_context(world, _stopped(world)),
    "context, a machine that is off": lambda world: _by_context(world, Named("dead", ("--server", _closed_url()))),
    "chosen context": lambda world: _chosen(world, _url(world.named)),
    "chosen context, a machine that is off": lambda world: _chosen(world, Named("dead", ("--server", _closed_url()))),
    "environment, directory": lambda world: _by_environment(world, _foreign(world)),
    "environment, address": lambda world: _by_environment(world, _url(world.named)),
    "environment, nobody there": lambda world: _by_environment(world, Named("dead", ("--server", _closed_url()))),
    "command line before environment": lambda world: Named(
        "files", (found := _stopped(world)).words, {"QUINTLOG_SERVER": world.other.admin_url}, data_dir=found.data_dir
    ),
    "nothing": lambda world: Named("url", (), {"QUINTLOG_TOKEN": world.default.token}, process=world.default),
}
assert len(NAMES) <= CASES

READS = {"served": 0, "held": 0, "quiet": 0, "url": 0, "files": 0, "no log": 3, "dead": 3}
ASKS = {"served": 0, "held": 3, "quiet": 0, "url": 0, "files": 3, "no log": 3, "dead": 3}
SENDS = {"served": 0, "held": 0, "quiet": 3, "url": 0, "files": 3, "no log": 3, "dead": 3}
MEASURES = SENDS | {"held": 3}
ALONE = {"served": 6, "held": 6, "quiet": 6, "url": 6, "files": 0, "no log": 3, "dead": 6}
CHANGES = {"served": 0, "held": 6, "quiet": 0, "url": 0, "files": 0, "no log": 3, "dead": 3}

Command = tuple[dict[Any, int], str]
COMMANDS: tuple[Command, ...] = (
    (READS, "status"),
    (READS, "topics list"),
    (READS, "topics show orders"),
    (READS, "subscriptions list"),
    (READS, "subscriptions show 24"),
    (READS, "subscriptions pending 24"),
    (READS, "groups list"),
    (READS, "groups show 24"),
    (READS, "commits list"),
    (READS, "sessions list"),
    (READS, "sessions show s23"),
    (READS, "definitions export"),
    (READS, "cat orders --limit 1"),
    (READS, "tail orders --limit 1"),
    (READS, "dump topic orders"),
    (READS, "verify"),
    (ALONE, "repair"),
    (READS | {"url": 6}, "backup OUT"),
    (ASKS, "check --disk-free 0"),
    (ASKS, "top --once --every 0.05"),
    (ASKS, "connections list"),
    (ASKS, "console"),
    (ASKS | {"served": 5, "quiet": 5, "url": 5}, "connections close 999999"),
    (ASKS, "keys list"),
    (ASKS, "keys add N"),
    (ASKS, "keys revoke N --yes"),
    (ASKS, "config reload"),
    (ASKS | {"dead": 0}, "generate prometheus"),
    (MEASURES, "bench publish --records 1 --size 1"),
    (MEASURES, "bench latency --via tank --records 1 --size 1"),
    (SENDS, "publish orders LINES"),
    (SENDS, "publish orders LINES --via tank"),
    (CHANGES, "topics create made-N retention=1h"),
    (CHANGES, "topics set orders retention=DAYSd"),
    (CHANGES, "topics trim trimmed --before BEFORE --yes"),
    (CHANGES, "topics delete goneN --yes"),
    (CHANGES, "subscriptions reset 24 --to BEFORE --yes"),
    (CHANGES, "subscriptions redrive 24 --from trimmed --to orders"),
    (CHANGES, "subscriptions delete ID --yes"),
    (CHANGES, "groups create made-N orders"),
    (CHANGES, "groups reset 24 --to N --yes"),
    (CHANGES, "subscriptions pause 24"),
    (CHANGES, "subscriptions resume 24"),
    (CHANGES, "sessions drop sN --yes"),
    (CHANGES, "definitions import DEFINITIONS --yes"),
    (CHANGES, "import blipmq-wal WAL"),
)
UNCHANGED = ("subscriptions redrive",)
"""It finds no dead letters."""


def words_of(text: str, number: int, root: Path) -> list[str]:
    (root / "lines").write_text("one\n")
    (root / "wal").write_bytes(HEADER + record(1, b"imported", b"body"))
    topics = [{"name": f"defined-{number}", "partitions": 1, "settings": {}}]
    (root / "definitions").write_text(json.dumps({"schema": 1, "topics": topics}))
    texts = {"LINES": root / "lines", "WAL": root / "wal", "DEFINITIONS": root / "definitions", "OUT": root / "out"}
    numbers = {"ID": number + 1, "BEFORE": number + 3, "DAYS": number + 2}
    words = []
    for word in text.split():
        word = str(texts.get(word, numbers.get(word, word)))
        words.append(f"{number + 2}d".join(word.split("DAYSd")).replace("N", str(number)) if "/" not in word else word)
    return words


def test_every_command_is_in_the_table() -> None:
    """Those that mean no log, or act on the files that they are given, are not."""
    from tools.logtool.cli import COMMANDS as ALL

    others = {
        "certificates", "context", "generate", "debug", "archive-segments", "archive-table", "remote", "restore",
        "spark", "upgrade",
    }  # fmt: skip
    assert {text.split()[0] for _, text in COMMANDS} - {"generate"} == set(ALL) - others


@pytest.mark.parametrize("name", NAMES)
def test_only_the_log_that_was_named_is_acted_on(
    world: World, name: str, logtool: Logtool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    number = list(NAMES).index(name)
    named = NAMES[name](world)
    default = world.default
    monkeypatch.setattr(address, "DEFAULT_SERVER", default.admin_url)
    for protocol in ("figg", "tank"):
        monkeypatch.setitem(address.DEFAULT_LISTENERS, protocol, "{}:{}".format(*default.address(protocol)))  # type: ignore[misc]
    for variable, value in named.environment.items():
        monkeypatch.setenv(variable, value)
    everybody = (world.named, world.quiet, world.other, default)
    bystanders = {process.data_dir.name: state_of(process) for process in everybody if process is not named.process}

    def own_state() -> str:
        if named.process is not None:
            return state_of(named.process)
        assert named.data_dir is not None
        lists = ("topics", "subscriptions", "sessions")
        return "\n".join(logtool("--data-dir", str(named.data_dir), one, "list", "-o", "json")[1] for one in lists)

    for expected, text in COMMANDS:
        changes = expected is CHANGES and expected[named.kind] == 0 and not text.startswith(UNCHANGED)
        before = own_state() if changes else ""
        code, out, err = logtool(*named.words, *words_of(text, number, tmp_path), "--timeout", "20")
        assert code == expected[named.kind], f"{text}: {out}{err}"
        assert not changes or own_state() != before, text
        if expected in (SENDS, MEASURES, CHANGES) or text.startswith("keys"):
            for process in everybody:
                if process is not named.process:
                    assert state_of(process) == bystanders[process.data_dir.name], f"{text}: {out}{err}"
    assert default.is_running
    assert world.other.is_running


def test_an_address_behind_a_forwarded_port_tells_no_listener(world: World, logtool: Logtool) -> None:
    """The server's own numbers mean another server here: `default` has one of the same kind."""
    with forwarded(world.named.address("admin")) as url:
        place = ("--server", url, "--token-file", str(world.named.data_dir / "admin.token"))
        code, _, err = logtool(*place, "publish", "orders", os.devnull)
        assert (code, f"not {url}: figg may be elsewhere" in err) == (3, True)
        assert logtool(*place, "topics", "show", "orders")[0] == 0


def test_a_listener_for_its_own_machine_only_is_not_looked_for_here() -> None:
    admin = address.Admin("http://10.0.0.5:9180", "", 1.0)
    seen = address._seen_from_here
    assert seen(admin, "figg", "0.0.0.0:8119", "0.0.0.0:9180") == "10.0.0.5:8119"
    assert seen(admin, "figg", "[::]:8119", "0.0.0.0:9180") == "10.0.0.5:8119"
    assert seen(admin, "figg", "10.0.0.6:8119", "0.0.0.0:9180") == "10.0.0.6:8119"
    assert seen(address.Admin("[::1]:9180", "", 1.0), "figg", "127.0.0.1:1", "[::]:9180") == "127.0.0.1:1"
    with pytest.raises(Failure, match="on its own machine only"):
        seen(admin, "figg", "127.0.0.1:8119", "0.0.0.0:9180")


@pytest.mark.parametrize("option", ["--data-dir", "--server", "--context"])
def test_an_empty_name_is_no_log(world: World, logtool: Logtool, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "DEFAULT_SERVER", world.default.admin_url)
    monkeypatch.chdir(world.copy())
    code, _, err = logtool(option, "", "topics", "delete", "orders", "--yes")
    assert (code, "an empty name means no log" in err) == (2, True)


def test_a_log_that_was_named_comes_before_the_key_file_of_the_environment(
    world: World, logtool: Logtool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    assert logtool("keys", "add", "k", "--file", str(keys))[0] == 0
    monkeypatch.setenv("QUINTLOG_BLIPMQ_KEY_FILE", str(keys))
    place = ("--data-dir", str(world.named.data_dir))
    assert logtool(*place, "keys", "revoke", "k", "--yes")[0] == 5
    assert logtool("keys", "revoke", "k", "--yes", *place)[0] == 5
    assert logtool("keys", "revoke", "k", "--yes")[0] == 0


def test_the_token_of_the_environment_is_not_sent_to_a_directory_that_was_named(
    world: World, logtool: Logtool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("another server's\n")
    monkeypatch.setenv("QUINTLOG_TOKEN_FILE", str(tmp_path / "token"))
    place = ("--data-dir", str(world.named.data_dir))
    assert logtool(*place, "connections", "list")[0] == 0
    assert logtool(*place, "connections", "list", "--token-file", str(tmp_path / "token"))[0] == 4
    assert logtool("--server", world.named.admin_url, "connections", "list")[0] == 4


def test_spark_is_not_run_on_the_directory_of_the_environment_for_a_server(
    world: World, logtool: Logtool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(world.other.data_dir))
    code, _, err = logtool("--server", world.named.admin_url, "spark", "stats")
    assert (code, "spark reads segment files" in err) == (2, True)


def test_a_request_that_means_another_directory_is_refused(world: World) -> None:
    """Whatever happens between asking whose server it is and the change itself."""
    admin = address.Admin(world.other.admin_url, world.other.token, 20.0, directory=identity_of(world.named.data_dir))
    with pytest.raises(Failure, match="another data directory"):
        admin.call("DELETE", "/v1/topics/orders")


def test_a_measurement_at_an_address_says_which_log_that_is(logtool: Logtool) -> None:
    code, _, err = logtool("bench", "publish", "--via", "figg=127.0.0.1:1")
    assert (code, "which log listens at 127.0.0.1:1?" in err) == (2, True)


def test_a_directory_held_by_a_tool_whose_old_port_is_another_servers(world: World, logtool: Logtool) -> None:
    """A lock alone says nothing of who listens there."""
    named = _foreign(world)
    assert named.data_dir is not None
    before = state_of(world.other)
    lock = DirectoryLock(named.data_dir)
    try:
        code, _, err = logtool(*named.words, "topics", "delete", "orders", "--yes")
        assert (code, f"process {os.getpid()} has {named.data_dir}" in err) == (6, True)
        assert logtool(*named.words, "publish", "orders", os.devnull)[0] == 3
        assert logtool(*named.words, "status")[1].startswith("server                   process")
    finally:
        lock.close()
    assert state_of(world.other) == before

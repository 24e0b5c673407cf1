"""Every command that only looks, by directory, address and context, and on the files alone: the same rows.

Those that change something are in `test_logtool_addresses`; no command is in neither table without a reason.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool
from tests.unit.tools.logtool.test_logtool_addresses import COMMANDS as CHANGING
from tests.unit.tools.logtool.test_logtool_sessions import stream
from tools.logtool.cli import root
from tools.logtool.lib.files_only import FILES_ONLY

pytestmark = pytest.mark.whole

MOVING = {"lag_seconds", "lag_trend", "expires_in_seconds", "due_ms"}
SERVED = {"connected", "state"}
"""What only a server can tell."""
RECORDS = ("{", "order ", *map(str, range(10)))
"""How the output of `cat`, `tail` and `definitions` begins."""
ROWS = (
    "topics list",
    "topics list 'o*'",
    "topics show orders",
    "subscriptions list",
    "subscriptions show 1",
    "subscriptions pending 1",
    "groups list",
    "groups list --protocol http",
    "groups show billing",
    "sessions list",
    "sessions show s1",
    "commits list",
    "definitions export",
    "cat orders",
    "cat orders --from -3 -o json",
    "cat orders:1 --key 2",
    "cat orders --from @-1h --contains 7 --format '%o %k %v\\n'",
    "tail orders --limit 4",
    "tail orders --from 3 -n 2 -o jsonl",
    "verify",
    "dump topic orders",
    "dump topic orders:1",
    "dump segment SEGMENT",
    "dump segment SEGMENT --records",
)
MEAN_NO_LOG = ("remote", "certificates", "context", "generate", "config check", "config show", "restore")
LIKE = {
    "bench consume": "bench publish",
    "commits abandon": "definitions import",
    "debug bundle": "status",
    "groups delete": "groups reset",
    "groups pause": "groups reset",
    "groups resume": "groups reset",
    "keys rotate": "keys revoke",
    "keys test": "keys list",
}
"""They find their log by the same call as these."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with something of everything in it, of which nothing moves any more."""
    settings: dict[str, dict[str, Any]] = {name: {"listen": "off"} for name in ("figg", "tank", "fujin", "kafka")}
    settings["reliably"] = {"session_expiry_ms": "1h"}
    settings["blipmq"] = {"retry_backoff_ms": "1h", "retry_backoff_max_ms": "1h"}
    with server(tmp_path_factory.mktemp("rows") / "data", settings) as made:
        made.admin("POST", "/v1/topics", {"name": "orders", "partitions": 2, "config": {"retention": "7d"}})
        made.admin("POST", "/v1/topics", {"name": "none"})
        with Peer(made.address("blipmq")) as peer:
            subscription = peer.subscribe(b"orders")
            assert subscription == 1
            for partition in (0, 1):
                records = [{"value": f"order {n}", "key": str(n), "timestamp_ms": n} for n in range(partition, 20, 2)]
                made.admin("POST", "/v1/topics/orders/records", {"partition": partition, "records": records})
            assert len(peer.poll(subscription, 3)) == 3
        made.admin("POST", "/v1/groups", {"name": "billing", "topic": "orders", "from": 4})
        made.admin("POST", "/v1/groups/billing/positions", {"positions": [{"partition": 1, "next_offset": 6}]})
        request = {"uuid": "s1", "params": {"topic": "orders", "offset": 2, "count": 3}}
        stream(made.address("reliably"), request, 3).close()
        yield made


def words_of(text: str, process: ServerProcess) -> list[str]:
    """As a shell would take it."""
    segment = process.data_dir / "topics" / "1" / "0" / "00000000000000000001.log"
    return shlex.split(text.replace("SEGMENT", str(segment)))


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command that does something, with the groups that it is in."""
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*words, name))


def test_every_command_works_by_address_or_says_why_not(logtool: Logtool, tmp_path: Path) -> None:
    tried = [*ROWS, *(text for _, text in CHANGING)]
    every = set(leaves(root))
    left = {leaf for leaf in every if not any(f"{text} ".startswith(f"{leaf} ") for text in tried)}
    assert LIKE.keys() < left
    assert all(any(text.startswith(like) for text in tried) for like in LIKE.values())
    left = {leaf for leaf in left - LIKE.keys() if not leaf.startswith(MEAN_NO_LOG)}
    assert left == FILES_ONLY.keys() - {"repair", "verify --repair-plan"}
    arguments = {"archive-segments": [str(tmp_path)], "archive-table": [str(tmp_path)], "spark": ["stats"]}
    for name, (text, exit_code) in FILES_ONLY.items():
        for way in (["--server", "127.0.0.1:1"], *([[]] if name != "spark" else [])):  # that one's jobs say it
            found = logtool(*way, *name.split(), *arguments.get(name, []))
            assert found[0] == exit_code, found
            assert found[2].startswith(f"logtool: {name} {text}"), found


def rows(text: str, left_out: set[str]) -> list[dict[str, str]]:
    """The rows of a table without what moves; of records each is a row."""
    if text.startswith(RECORDS):
        return [{"": line} for line in text.splitlines()]
    return [
        {key: value for key, value in row.items() if key not in left_out} for row in csv.DictReader(io.StringIO(text))
    ]


def test_the_same_rows_by_directory_address_and_context(
    process: ServerProcess, logtool: Logtool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    address = ["--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token")]
    assert logtool("context", "add", "shop", *address)[0] == 0
    directory = ["--data-dir", str(process.data_dir)]
    found = {}
    for text in ROWS:
        words = words_of(text, process)
        form = ["-o", "csv"] if words[0] not in ("cat", "tail", "definitions") else []
        for way in (directory, address, ["--context", "shop"]):
            code, out, err = logtool(*way, *words, *form)
            assert code == 0, (text, way, err)
            found.setdefault(text, rows(out, MOVING))
            assert rows(out, MOVING) == found[text], (text, way)
    for way in (directory, address):
        _, _, told = logtool(*way, "-v", "cat", "orders", "--contains", "7")
        assert "scanned 20 of 20 records, found 2" in told
    process.kill()
    for text in ROWS:
        words = words_of(text, process)
        if words[0] == "tail":
            continue
        form = [] if words[0] in ("cat", "definitions") else ["-o", "csv"]
        code, out, err = logtool(*directory, *words, *form)
        assert code == 0, (text, err)
        before = found[text]
        before = [{key: value for key, value in row.items() if key not in SERVED} for row in before]
        assert rows(out, MOVING | SERVED) == before, text

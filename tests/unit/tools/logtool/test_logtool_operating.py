"""logtool check, config, connections and generate, against a real server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tools.logtool.check import Limits, _certificate, figures, findings
from tools.logtool.run import run

pytestmark = pytest.mark.whole

Logtool = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("log")
    (place / "quintlog.toml").write_text('[topics]\nretention = "7d"\n')
    with server(place / "data", arguments=("--config", str(place / "quintlog.toml"))) as running:
        yield running


@pytest.fixture
def logtool(process: ServerProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Logtool:
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)

    def call(*args: str) -> tuple[int, str, str]:
        code = run(["--data-dir", str(process.data_dir), *args])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def test_check_finds_all_well_and_what_is_not(process: ServerProcess, logtool: Logtool) -> None:
    code, out, _ = logtool("check", "--disk-free", "0", "-o", "json")
    assert code == 0
    items = {item["check"]: item for item in json.loads(out)["items"]}
    assert all(item["ok"] for item in items.values())
    assert items["ready"]["message"] == "ready"
    code, out, _ = logtool("check", "--disk-free", "100")
    assert code == 1
    assert "FAILED  " in out
    assert logtool("check", "--disk-free", "0", "--format", "nagios") == (0, "QUINTLOG OK - 11 checks\n", "")
    code, out, _ = logtool("check", "--disk-free", "100", "--format", "nagios")
    assert (code, out.startswith("QUINTLOG CRITICAL - ")) == (2, True)
    # no token is needed: only the address
    address = ["--server", process.admin_url, "check", "--disk-free", "0", "--lag", "0"]
    assert run(address) == 0


def test_check_without_a_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--data-dir", str(tmp_path), "check"]) == 3
    assert "`logtool verify` checks the files without one" in capfd.readouterr().err
    assert run(["--data-dir", str(tmp_path), "check", "--format", "nagios"]) == 2
    assert capfd.readouterr().out.startswith("QUINTLOG CRITICAL - no server is running")


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("quintlog_partitions_read_only 2.0", "partitions"),
        ("quintlog_damaged_batches_total 1.0", "damage"),
        ("quintlog_lost_records_total 7.0", "lost"),
        ("quintlog_sync_failures_total 1.0", "sync"),
        ("quintlog_housekeeping_failing_topics 1.0", "housekeeping"),
        ("quintlog_unsynced_age_seconds 61.0", "sync age"),
        ("quintlog_config_reload_success 0.0", "reload"),
        ('quintlog_subscription_lag_records_max{protocol="blipmq"} 11.0', "lag"),
        ('quintlog_subscription_lag_seconds_max{protocol="fujin"} 31.0', "lag seconds"),
        ("quintlog_disk_free_bytes 49.0", "disk"),
    ],
)
def test_each_check_can_fail(line: str, failed: str) -> None:
    well = "# HELP x y\nquintlog_disk_free_bytes 51.0\nquintlog_disk_size_bytes 1000.0\n"
    limits = Limits(5.0, 60.0, 10, 14, 30.0)
    assert all(item["ok"] for item in findings(figures(well), "", limits))
    worse = figures(well) | figures(line)
    assert [item["check"] for item in findings(worse, "", limits) if not item["ok"]] == [failed]
    assert not findings(figures(well), "starting or stopping", limits)[0]["ok"]


@pytest.mark.parametrize(
    ("lines", "is_ok", "message"),
    [
        ("quintlog_remote_lag_seconds 900.0", True, "object storage is"),
        ("quintlog_remote_lag_seconds 900.0\nquintlog_remote_stalled_seconds 301.0", False, "nothing was stored for"),
        ("quintlog_remote_stopped 1.0", False, "nothing more is stored in object storage; `logtool status` says why"),
    ],
)
def test_check_looks_at_object_storage_where_there_is_any(lines: str, is_ok: bool, message: str) -> None:
    limits = Limits(5.0, 60.0, 10, 14, 30.0)
    items = {item["check"]: item for item in findings(figures(f"quintlog_remote 1.0\n{lines}"), "", limits)}
    assert items["remote"]["ok"] is is_ok
    assert message in items["remote"]["message"]
    assert "remote" not in {item["check"] for item in findings(figures(f"quintlog_remote 0.0\n{lines}"), "", limits)}


def test_a_certificate_that_is_valid_for_ever_is_not_told_in_days() -> None:
    assert _certificate(("fujin", 2_912_111.0), 14)["message"].startswith("fujin's certificate expires in 7973 years")
    assert _certificate(("figg", 3.0), 14)["message"].startswith("figg's certificate expires in 3 days (least: 14)")


def test_check_says_what_was_not_looked_at() -> None:
    limits = Limits(5.0, 60.0, 10, 14, 30.0)
    (looked,) = [item for item in findings({"partitions_unopened": 3.0}, "", limits) if item["check"] == "looked at"]
    assert looked["ok"]
    assert looked["message"].startswith("all but 3 partitions that nobody used since the start")


def test_a_partition_is_looked_at_when_it_is_used(tmp_path: Path) -> None:
    def unopened() -> float:
        with urllib.request.urlopen(f"{process.admin_url}/metrics") as answer:
            return figures(answer.read().decode())["partitions_unopened"]

    with server(tmp_path / "data") as process:
        for topic in ("a", "b"):
            process.admin("POST", "/v1/topics", {"name": topic, "partitions": 5})
            process.admin("POST", f"/v1/topics/{topic}/records", {"records": [{"value": "x"}]})
        assert unopened() == 0
        process.kill()
        process.restart()
        assert unopened() == 2
        process.admin("GET", "/v1/topics/a")
        assert unopened() == 1


def test_the_metrics_that_check_reads_exist(process: ServerProcess) -> None:
    with urllib.request.urlopen(f"{process.admin_url}/metrics") as answer:
        found = figures(answer.read().decode())
    for name in [
        "disk_free_bytes",
        "disk_size_bytes",
        "partitions_read_only",
        "partitions_unopened",
        "damaged_batches_total",
        "lost_records_total",
        "sync_failures_total",
        "housekeeping_failing_topics",
        "unsynced_age_seconds",
        "config_reload_success",
        "config_reload_time_seconds",
        "remote",
        "remote_stopped",
        "remote_stalled_seconds",
        "remote_lag_seconds",
    ]:
        assert name in found


def test_config(process: ServerProcess, logtool: Logtool, tmp_path: Path) -> None:
    path = process.data_dir.parent / "quintlog.toml"
    code, out, _ = logtool("config", "show", "--config", str(path), "--changed", "-o", "json")
    assert code == 0
    made = {"section": "topics", "setting": "retention", "value": "7d", "restart": False}
    assert json.loads(out)["items"] == [{**made, "origin": f"file {path}: line 2"}]
    everything = json.loads(logtool("config", "show", "-o", "json")[1])["items"]
    assert {item["origin"] for item in everything} == {"default"}
    rows = [(item["section"], item["setting"], item["value"], item["restart"]) for item in everything]
    assert ("server", "insecure", False, True) in rows
    assert ("server", "connections_max", 10000, False) in rows
    assert ("figg", "listen", "127.0.0.1:8119", True) in rows
    assert "insecure false yes" in " ".join(logtool("config", "show")[1].split())
    assert logtool("config", "check", "--config", str(path)) == (0, "", "the configuration is valid\n")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[topics]\nretentio = "7d"\n')
    code, _, err = logtool("config", "check", "--config", str(wrong))
    assert code == 2
    assert "wrong.toml: line 2: [topics] unknown setting 'retentio'" in err


def test_config_reload(process: ServerProcess, logtool: Logtool) -> None:
    path = process.data_dir.parent / "quintlog.toml"
    before = path.read_text()
    path.write_text('[topics]\nretention = "9d"\n')
    assert logtool("config", "reload") == (0, "", "reloaded\n")
    process.admin("POST", "/v1/topics", {"name": "later"})
    assert process.admin("GET", "/v1/topics/later")["config"]["retention"] == "9d"
    path.write_text("[topics\n")
    code, _, err = logtool("config", "reload", "--timeout", "5")
    assert code == 2
    assert "nothing changed" in err
    assert logtool("check", "--disk-free", "0")[0] == 1
    path.write_text(before)
    assert logtool("config", "reload", "-o", "jsonl") == (0, '{"reloaded":true,"restart_needed":[]}\n', "")
    assert logtool("check", "--disk-free", "0")[0] == 0


def test_connections(process: ServerProcess, logtool: Logtool) -> None:
    with socket.create_connection(process.address("figg")) as peer:
        while True:
            items = json.loads(logtool("connections", "list", "figg", "-o", "json")[1])["items"]
            if items:
                break
        (item,) = items
        assert item["peer"] == "{}:{}".format(*peer.getsockname())
        assert item["opened"].endswith("Z")
        assert logtool("connections", "list", "tank*", "-o", "jsonl") == (0, "", "")
        assert logtool("connections", "close", str(item["number"])) == (0, "", f"closed {item['number']}\n")
        peer.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        assert logtool("connections", "close", str(item["number"]))[0] == 5


def test_completion_knows_commands_without_importing_them() -> None:
    environment = os.environ | {"COMP_CWORD": "1", "COMP_WORDS": "logtool che", "_LOGTOOL_COMPLETE": "bash_complete"}
    code = (
        "import sys; from tools.logtool.run import run; code = run(); sys.stdout.flush(); "
        "assert 'tools.logtool.check' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,check\n"
    environment |= {"COMP_CWORD": "2", "COMP_WORDS": "logtool topics cr"}
    code = "import sys; from tools.logtool.run import run; sys.exit(run())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,create\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(logtool: Logtool, shell: str) -> None:
    code, out, _ = logtool("generate", "completion", shell)
    assert code == 0
    assert "_LOGTOOL_COMPLETE" in out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=out, text=True, check=True)


def test_systemd_unit(process: ServerProcess, logtool: Logtool) -> None:
    code, out, _ = logtool("generate", "systemd", "--user", "log", "--config", "/etc/quintlog.toml")
    assert code == 0
    assert f"engine-server --data-dir {process.data_dir} --config /etc/quintlog.toml\n" in out
    assert "User=log\n" in out
    assert f"ReadWritePaths={process.data_dir}\n" in out

"""``engine-server`` as a process: what it prints, its exit codes and signals, and that it shares a machine well."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from netserver.config.loading import load
from netserver.errors import ConfigError
from netserver.limits import FLUSH_S
from netserver.testing import ServerProcess, server
from tests.certificates import self_signed
from tests.processes import Started

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One short run of the command."""
    return subprocess.run(
        [sys.executable, "-m", "tools.engine_server", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def free_listeners() -> tuple[str, ...]:
    """Arguments that put every listener on a free port."""
    names = ("figg", "reliably", "tank", "blipmq", "fujin", "kafka", "admin")
    return tuple(part for name in names for part in (f"--{name}", "127.0.0.1:0"))


def test_start_tells_contract_directory_and_listeners_and_stop_is_clean() -> None:
    with server() as quintlog:
        assert quintlog.output[0].startswith("quintlog ")
        assert quintlog.output[1].startswith("An acknowledgement means: the record is in its segment file")
        assert f"data directory {quintlog.data_dir}" in quintlog.output
        assert quintlog.output[-1] == "ready"
        for name, port in quintlog.ports.items():
            assert f"{name} 127.0.0.1:{port}" in quintlog.output
        document = json.loads((quintlog.data_dir / "server.json").read_text())
        assert document["pid"] == quintlog.pid
        assert document["admin"] == quintlog.admin_url
        assert document["listeners"] == {
            name: f"127.0.0.1:{port}" for name, port in quintlog.ports.items() if name != "admin"
        }
        assert quintlog.stop(signal.SIGINT) == 0
        assert not (quintlog.data_dir / "server.json").exists()
        assert "SIGINT: finishing what is outstanding" in quintlog.log_text
        quintlog.restart()
        quintlog.kill()
        assert (quintlog.data_dir / "server.json").exists()
        quintlog.restart()
        assert quintlog.admin("GET", "/v1/status")["pid"] == quintlog.pid


def test_checks_and_prints(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text('[topics]\ndurability = "interval"\nsync_interval_ms = "250ms"\n')
    checked = run("--config", str(path), "--check-config")
    assert (checked.returncode, checked.stdout) == (0, "the configuration is valid\n")
    contract = run("--print-contract", environment={"QUINTLOG_CONFIG": str(path)})
    assert "synced to disk within 0.25 s" in contract.stdout
    assert "when it likes" in run("--print-contract", environment={"QUINTLOG_TOPICS_DURABILITY": "never"}).stdout
    printed = run("--config", str(path), "--tank", "off", "--print-config")
    assert printed.returncode == 0
    assert 'sync_interval = "250ms"' in printed.stdout
    assert 'listen = "off"' in printed.stdout
    assert run("--version").stdout.startswith("engine-server ")
    assert "--data-dir" in run("--help").stdout


def test_wrong_settings_end_with_2(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text("[figg]\nlissten = 1\n")
    for ended, text in (
        (
            run("--config", str(path), "--check-config"),
            ".toml: line 2: [figg] unknown setting 'lissten': did you mean listen?",
        ),
        (run("--config", str(tmp_path / "none")), "there is no such file"),
        (run("--figg", "8119", "--check-config"), "expected HOST:PORT"),
        (run("--check-config", environment={"QUINTLOG_FIGG_LISTN": "x"}), "did you mean QUINTLOG_FIGG_LISTEN?"),
        (run(), "no data directory: name one with --data-dir DIR"),
        (run("--nonsense"), "No such option"),
        (run("--data-dir", str(tmp_path / "d"), "--figg", "0.0.0.0:0"), "--insecure"),
    ):
        assert ended.returncode == 2, ended.stderr
        assert text in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[figg]\nlisten = "off"\n\n[topics]\n# kept\nretention = "7q"\n', "line 6: [topics] retention = '7q'"),
        ('[topcs]\nretention_ms = "7d"\n', "line 1: unknown section 'topcs': did you mean topics?"),
        ('\ntopics.segment_bytes = "1q"\n', "line 2: [topics] segment_bytes"),
        ("topics = 3\n", "line 1: topics is a section"),
        ("[figg\n", "line 1, column 6"),
    ],
)
def test_errors_of_the_file_name_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(path, {}, {})


def test_a_locked_directory_is_told_before_anything_is_promised(tmp_path: Path) -> None:
    with server(tmp_path / "data"):
        ended = run("--data-dir", str(tmp_path / "data"), *free_listeners())
        assert (ended.returncode, ended.stdout) == (6, "")
    wrong = run("--nonsense")
    assert wrong.stderr.startswith("engine-server: ")
    assert "engine-server --help" in wrong.stderr


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("Dear ...")
    ended = run("--data-dir", str(tmp_path / "foreign"), *free_listeners())
    assert ended.returncode == 3
    assert "choose an empty one" in ended.stderr
    (tmp_path / "file").write_text("")
    assert run("--data-dir", str(tmp_path / "file"), *free_listeners()).returncode == 3
    with server(tmp_path / "data") as quintlog:
        ended = run("--data-dir", str(tmp_path / "data"), *free_listeners())
        assert ended.returncode == 6
        assert f"in use by process {quintlog.pid}" in ended.stderr
        taken = f"127.0.0.1:{quintlog.ports['admin']}"
        ended = run("--data-dir", str(tmp_path / "other"), *free_listeners(), "--admin", taken)
        assert ended.returncode == 6
        assert "--admin HOST:PORT" in ended.stderr
        with socket.create_server(("127.0.0.1", 0)) as holder:
            taken = f"127.0.0.1:{holder.getsockname()[1]}"
            ended = run("--data-dir", str(tmp_path / "other"), *free_listeners(), "--tank", taken)
        assert ended.returncode == 6
        assert "another process listens there" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_json_log_and_closed_stdout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.engine_server", f"--data-dir={tmp_path / 'd'}", "--log-format=json"]
    with Started(
        [*command, *free_listeners()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("quintlog")
        process.stdout.close()
        deadline = time.monotonic() + 20
        while not (tmp_path / "d" / "server.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert lines[-1]["message"].startswith("stopped after")


def wait_for_log(quintlog: ServerProcess, pattern: str, timeout_s: float = 10) -> None:
    """Until the server has logged something."""
    deadline = time.monotonic() + timeout_s
    while not re.search(pattern, quintlog.log_text):
        assert time.monotonic() < deadline, quintlog.log_text
        time.sleep(0.01)


def test_a_restart_waits_for_a_port_that_others_were_lent() -> None:
    with server() as quintlog:
        quintlog.kill()
        with socket.create_server(quintlog.address("tank")):
            again = threading.Thread(target=quintlog.restart)
            again.start()
            wait_for_log(quintlog, "Address already in use", 30)
        again.join()
        socket.create_connection(quintlog.address("tank")).close()


def test_reload_is_all_or_nothing(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    path = tmp_path / "quintlog.toml"
    path.write_text("")
    with server(arguments=("--config", str(path))) as quintlog:
        quintlog.admin("POST", "/v1/topics", {"name": "orders"})
        path.write_text('[topics]\nretention_ms = "1d"\n[engine]\nopen_files_max = 100\n')
        os.kill(quintlog.pid, signal.SIGHUP)
        wait_for_log(quintlog, "need a restart: engine.open_files_max")
        topic = quintlog.admin("GET", "/v1/topics/orders")
        assert topic["config"]["retention"] == "1d"
        assert "quintlog_config_reload_success 1.0" in quintlog.admin("GET", "/metrics")

        path.write_text('[topics]\nretention_ms = "2d"\n[figg]\nlissten = 1\n')
        os.kill(quintlog.pid, signal.SIGHUP)
        wait_for_log(quintlog, r"not reloaded, nothing changed: .*did you mean listen\?")
        assert quintlog.admin("GET", "/v1/topics/orders")["config"]["retention"] == "1d"
        assert "quintlog_config_reload_success 0.0" in quintlog.admin("GET", "/metrics")

        path.write_text(
            f'[topics]\nretention_ms = "2d"\n[tank]\ntls_certificate = "{key}"\ntls_key = "{certificate}"\n'
        )
        os.kill(quintlog.pid, signal.SIGHUP)
        wait_for_log(quintlog, "nothing changed: TLS files")
        assert quintlog.admin("GET", "/v1/topics/orders")["config"]["retention"] == "1d"

        path.write_text(
            f'[topics]\nretention_ms = "2d"\n[tank]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
        )
        os.kill(quintlog.pid, signal.SIGHUP)
        wait_for_log(quintlog, "configuration reloaded(?s:.*)configuration reloaded")
        assert quintlog.admin("GET", "/v1/topics/orders")["config"]["retention"] == "2d"


def test_reload_of_what_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text("")
    with server(arguments=("--config", str(path))) as quintlog:
        for content, said in (
            (b"a = " + b"[" * 100_000, "nested too deeply"),
            (b"# " + b"x" * (1 << 20), "larger than 1048576 bytes"),
            (b"\xff", "can't decode"),
        ):
            path.write_bytes(content)
            os.kill(quintlog.pid, signal.SIGHUP)
            wait_for_log(quintlog, f"not reloaded, nothing changed: .*{said}")
            assert "quintlog_config_reload_success 0.0" in quintlog.admin("GET", "/metrics")
        assert "Traceback" not in quintlog.log_text


def test_reload_from_a_pipe_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text("")
    with server(arguments=("--config", str(path))) as quintlog:
        quintlog.admin("POST", "/v1/topics", {"name": "orders"})
        path.unlink()
        os.mkfifo(path)
        os.kill(quintlog.pid, signal.SIGHUP)
        os.kill(quintlog.pid, signal.SIGHUP)
        with path.open("w") as writer:  # somebody reads it now
            assert quintlog.admin("GET", "/v1/topics/orders")["config"]["retention"] == "0"
            writer.write('[topics]\nretention_ms = "1d"\n')
        wait_for_log(quintlog, "configuration reloaded")
        assert quintlog.admin("GET", "/v1/topics/orders")["config"]["retention"] == "1d"
        assert quintlog.stop() == 0  # also with a reader that waits for another writer


def test_second_signal_stops_at_once() -> None:
    with server() as quintlog, socket.create_connection(quintlog.address("tank")) as client:
        assert client.recv(5)
        os.kill(quintlog.pid, signal.SIGTERM)
        wait_for_log(quintlog, "finishing")
        assert quintlog.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        assert "second SIGTERM" in quintlog.log_text


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_descriptors_used_up_python_cpython_151615_asyncio_78_libuv_690() -> None:
    """No spinning while accept() fails, and new connections are served as soon as others close."""
    with server() as quintlog:
        used = len(os.listdir(f"/proc/{quintlog.pid}/fd"))
        resource.prlimit(quintlog.pid, resource.RLIMIT_NOFILE, (used + 5, used + 5))
        clients = [socket.create_connection(quintlog.address("tank"), 10) for _ in range(12)]
        wait_for_log(quintlog, "cannot accept connections: Too many open files")
        before = cpu_seconds(quintlog.pid)
        time.sleep(1)
        assert cpu_seconds(quintlog.pid) - before < 0.25
        assert quintlog.log_text.count("cannot accept") == 1
        for number, client in enumerate(clients):  # each close lets another one in
            client.settimeout(FLUSH_S)
            assert len(client.recv(5)) == 5, number
            client.close()
        assert quintlog.stop() == 0


@pytest.mark.parametrize("limit", [64, 256])
def test_low_descriptor_limit(limit: int) -> None:
    """A start under ``ulimit -n``: the log keeps fewer files open, and connections have room beside them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arguments = ("bash", "-c", f'ulimit -n {limit}; exec {sys.executable} -m tools.engine_server "$@"', "engine-server")
    with ServerProcess(command=arguments) as quintlog:
        assert resource.prlimit(quintlog.pid, resource.RLIMIT_NOFILE) == (limit, limit)
        assert f"the limit of {limit} open files allows" in quintlog.log_text
        for number in range(100):
            body = {"records": [{"value": "x"}]}
            assert quintlog.admin("POST", f"/v1/topics/topic-{number}/records", body)["last_offset"] == 1
        for number in range(100):
            assert quintlog.admin("GET", f"/v1/topics/topic-{number}")["partition_details"][0]["next_offset"] == 2
        assert quintlog.admin("GET", "/v1/status")["connections_max"] >= limit // 4
        assert quintlog.stop() == 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_two_servers_share_nothing() -> None:
    with server() as first, server() as second:
        assert not set(first.ports.values()) & set(second.ports.values())
        first.admin("POST", "/v1/topics", {"name": "orders"})
        assert second.admin("GET", "/v1/topics")["items"] == []


def test_the_test_server_says_why_it_cannot_start() -> None:
    with (
        pytest.raises(RuntimeError, match=r"exit code 2.*(?s:.)*record_bytes_max"),
        server(settings={"topics": {"record_bytes_max": "none"}}),
    ):
        pass


@pytest.mark.parametrize(("option", "closed"), [("--print-config", 141), ("--help", 1)])  # help: as click ends it
def test_an_answer_that_nobody_gets_is_no_success(option: str, closed: int) -> None:
    command = [sys.executable, "-m", "tools.engine_server", option]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, "engine-server: stdout: no space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=30)
    os.close(writing)
    assert (done.returncode, done.stderr) == (closed, "")


def test_a_start_loads_no_client() -> None:
    """A start is mostly imports: about a tenth of them would be clients."""
    code = (
        "import sys, importlib, netserver.app as app\n"
        "[importlib.import_module(name) for name in (*app.TCP_PROTOCOLS.values(), *app.OTHER_PROTOCOLS.values())]\n"
        "print(*[name for name in sys.modules if name.startswith('netserver.') and name.endswith('.client')])\n"
        "from netserver import blipmq, figg, fujin, reliably, tank\n"
        "for package in (blipmq, figg, fujin, reliably, tank):\n"
        "    assert all(getattr(package, name) is not None for name in package.__all__)\n"
        "    assert not hasattr(package, 'nothing')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["netserver.client"]


def test_a_start_reads_no_authorities_of_the_system() -> None:
    """They are for clients, and reading them would take a tenth of it; what the environment names is left alone."""
    code = (
        "import os\n"
        "from tools.engine_server import load_aiohttp\n"
        "before = dict(os.environ)\n"
        "load_aiohttp()\n"
        "import netserver.app\n"
        "from aiohttp import connector\n"
        "print(connector._SSL_CONTEXT_VERIFIED.get_ca_certs(), dict(os.environ) == before, before['SSL_CERT_FILE'])\n"
    )
    environment = {**os.environ, "SSL_CERT_FILE": "somebodys.pem"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert found.stdout == b"[] True somebodys.pem\n"

"""logtool publish through a real server, read back from its files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from netserver.client.partitioning import partition_of
from netserver.testing import ServerProcess, server
from tests.disks import fill, tmpfs
from tests.processes import Started
from tools.logtool.lib.output import count_text
from tools.logtool.run import run

pytestmark = pytest.mark.whole

Logtool = Callable[..., tuple[int, str, str]]
COMMAND = [sys.executable, "-m", "tools.logtool"]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("log") / "data") as running:
        yield running


@pytest.fixture
def logtool(process: ServerProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Logtool:
    """Runs a command line on the server's directory, with `stdin` as its input; (exit code, stdout, stderr)."""
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(process.data_dir))

    def call(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
            code = run(args)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("framing", "data", "values"),
    [
        ("--lines", b"one\n\ntwo\nlast", ["one", "", "two", "last"]),
        ("--nul", b"a\nb\0c\0", ["a\nb", "c"]),
        ("--length", b"\0\0\0\2hi\0\0\0\0", ["hi", ""]),
        ("--whole", b"all\nof it", ["all\nof it"]),
        ("--jsonl", b'{"value":"x","offset":7}\n{"value_base64":"eQ=="}\n', ["x", "y"]),
    ],
)
def test_framings(logtool: Logtool, framing: str, data: bytes, values: list[str]) -> None:
    topic = framing.strip("-")
    assert logtool("publish", topic, framing, stdin=data) == (
        0,
        f"{count_text(len(values), 'record')} acknowledged\n",
        "",
    )
    lines = logtool("cat", topic, "-o", "jsonl")[1].splitlines()
    assert [json.loads(line)["value"] for line in lines] == values


def test_files(logtool: Logtool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"".join(b"a%d\n" % number for number in range(50_000)))
    (tmp_path / "b").write_bytes(b"b\n")
    names = [str(tmp_path / "a"), "-", str(tmp_path / "b")]
    assert logtool(
        "publish",
        "files",
        *names,
        stdin=b"between\n",
    )[:2] == (0, "50002 records acknowledged\n")
    expected = (tmp_path / "a").read_text() + "between\nb\n"
    assert logtool("cat", "files")[1] == expected
    assert logtool("publish", "files", str(tmp_path / "missing"))[0] == 2


def test_a_text_where_a_file_belongs(logtool: Logtool) -> None:
    code, out, error = logtool("publish", "t", "hello")
    assert (code, out) == (2, "")
    assert "hello: no such file" in error
    assert "echo TEXT | logtool publish TOPIC" in error


def test_what_cat_wrote_can_be_published_again(logtool: Logtool) -> None:
    logtool("publish", "first", stdin=b"x\n\xff\xfe\n\xc3\xbc\n")
    lines = logtool("cat", "first", "-o", "jsonl")[1].encode()
    assert logtool("publish", "second", "--jsonl", stdin=lines)[0] == 0
    values = [logtool("cat", topic, "--decode", "hex")[1] for topic in ("first", "second")]
    assert values == ["78\nfffe\nc3bc\n"] * 2


def test_json_output(logtool: Logtool) -> None:
    code, out, _ = logtool("publish", "counted", "-o", "json", stdin=b"x\ny\n")
    assert code == 0
    (item,) = json.loads(out)["items"]
    assert (item["topic"], item["acknowledged"], item["sent"]) == ("counted", 2, 2)


def test_addresses(logtool: Logtool, process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = process.address("figg")
    monkeypatch.delenv("QUINTLOG_DATA_DIR")
    assert logtool("publish", "addressed", "--via", f"figg={host}:{port}", stdin=b"x\n")[0] == 0
    code, out, err = logtool("publish", "addressed", "--via", "figg=127.0.0.1:1", stdin=b"x\n")
    assert (code, out) == (3, "")
    assert "127.0.0.1:1" in err


def test_a_record_that_is_too_large(logtool: Logtool) -> None:
    data = b"small\n" + b"x" * (17 << 20) + b"\n"
    code, out, err = logtool("publish", "large", stdin=data)
    assert (code, out) == (7, "")
    assert "bytes" in err


def test_interrupted_it_says_how_far_it_got(process: ServerProcess) -> None:
    command = [*COMMAND, "--data-dir", str(process.data_dir), "publish", "interrupted"]
    with Started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        assert publisher.stderr is not None
        publisher.stdin.write(b"one\ntwo\n")
        publisher.stdin.flush()
        follow = [*COMMAND, "--data-dir", str(process.data_dir), "tail", "interrupted", "--from", "earliest"]
        process.admin("POST", "/v1/topics", {"name": "other"})
        for _ in range(200):
            done = subprocess.run([*follow, "--to", "3"], capture_output=True, check=False)
            if done.returncode == 0:
                break
        assert done.stdout == b"one\ntwo\n"
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(20) == 130  # although the input is still open
        assert publisher.stdout.read() == b"2 records acknowledged\n"
        assert publisher.stderr.read() == b""


def test_a_server_that_dies_in_mid_load(tmp_path: Path) -> None:
    with server(tmp_path / "data") as dying:
        command = [*COMMAND, "--data-dir", str(dying.data_dir), "publish", "topic"]
        with Started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as publisher:
            assert publisher.stdin is not None
            publisher.stdin.write(b"x\n" * 1000)
            publisher.stdin.flush()
            while dying.admin("GET", "/v1/status")["records_published"] < 1000:
                assert publisher.poll() is None
            dying.kill()
            out, err = publisher.communicate(timeout=20)
        assert publisher.returncode == 3
        assert out == b""
        assert re.match(rb"logtool: \d+ of 1000 records were acknowledged, then: the connection broke\n", err), err


def test_the_partition_is_that_of_the_key(logtool: Logtool) -> None:
    assert logtool("topics", "create", "keyed", "--partitions", "4")[0] == 0
    lines = [b"key-%d=%d" % (number % 40, number) for number in range(2000)]
    args = ["publish", "keyed", "--via", "tank", "--key-delimiter", "="]
    assert logtool(*args, stdin=b"\n".join(lines) + b"\n") == (0, "2000 records acknowledged\n", "")
    seen: dict[str, list[int]] = {}
    for partition in range(4):
        printed = logtool("cat", f"keyed:{partition}", "--format", "%k %v\n")[1].splitlines()
        keys = {line.split()[0] for line in printed}
        assert keys == {f"key-{n}" for n in range(40) if partition_of(b"key-%d" % n, 4) == partition}
        for line in printed:
            key, value = line.split()
            seen.setdefault(key, []).append(int(value))
    assert seen == {f"key-{n}": list(range(n, 2000, 40)) for n in range(40)}
    code, out, err = logtool("publish", "keyed", "--via", "tank", "-o", "jsonl", stdin=b"a\n" * 1000)
    assert (code, json.loads(out)["partition"], json.loads(out)["acknowledged"]) == (0, None, 1000)
    assert err == "logtool: records without a key go to partition 0 of 4; TOPIC:N names another one\n"
    assert logtool("cat", "keyed:0")[1].splitlines().count("a") == 1000
    assert logtool("publish", "", stdin=b"a\n")[0] == 2


def test_through_tank_with_keys_and_partitions(logtool: Logtool) -> None:
    assert logtool("topics", "create", "clicks", "--partitions", "2")[0] == 0
    args = ["publish", "clicks:1", "--via", "tank", "--key-delimiter", "="]
    data = b"".join(b"k%d=v%d\n" % (number % 7, number) for number in range(3000)) + b"bare\n"
    assert logtool(*args, stdin=data) == (0, "3001 records acknowledged\n", "")
    assert logtool("cat", "clicks:1", "--format", r"%k=%v\n")[1].encode() == data.replace(b"bare", b"=bare")
    assert logtool("cat", "clicks:0")[1] == ""


def test_refused_records_are_told(logtool: Logtool) -> None:
    code, out, err = logtool("publish", "never_made", "--via", "tank", stdin=b"x\n")
    assert (code, out) == (5, "")
    assert err.splitlines()[0] == "logtool: no topic never_made"
    assert "`logtool topics create never_made --partitions N` does" in err
    assert logtool("topics", "create", "made")[0] == 0
    code, _, err = logtool("publish", "made:7", "--via", "tank", "-o", "json", stdin=b"x\n")
    assert (code, json.loads(err)["error"]["code"]) == (5, "unknown_partition")


def test_nobody_listens(logtool: Logtool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, _, err = logtool("publish", "t", "--via", f"figg=127.0.0.1:{port}", stdin=b"x\n")
    assert code == 3
    assert f"logtool: 127.0.0.1:{port}: connection refused: nothing listens there\n  is the server running?" in err
    code, _, err = logtool("publish", "t", "--via", "figg=no-such-host.invalid", stdin=b"x\n")
    assert code == 3
    assert "the host name cannot be resolved" in err
    assert "[Errno" not in err


def test_sigterm_says_how_far_it_came(process: ServerProcess) -> None:
    environment = os.environ | {"QUINTLOG_DATA_DIR": str(process.data_dir)}
    command = [*COMMAND, "publish", "terminated"]
    with Started(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as publisher:
        assert publisher.stdin is not None
        publisher.stdin.write(b"one\ntwo\n")
        publisher.stdin.flush()
        while not process.admin("GET", "/v1/topics?name=terminated")["items"]:
            assert publisher.poll() is None
        publisher.terminate()
        assert publisher.wait(20) == 143
        assert publisher.stderr is not None
        err = publisher.stderr.read().decode()
    assert re.match(r"logtool: [0-2] of 2 records were acknowledged, then: SIGTERM\n", err), err


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system of its own")
def test_a_full_disk_is_named_and_ends_with_7(tmp_path: Path, logtool: Logtool) -> None:
    with tmpfs(tmp_path / "disk", 12 << 20) as disk, server(disk / "data") as full:
        place = ("--data-dir", str(full.data_dir))
        assert logtool(*place, "publish", "big", stdin=b"x\n")[0] == 0
        fill(disk)
        data = b"".join(b"%0999d\n" % number for number in range(8000))
        code, _, err = logtool(*place, "publish", "big", "--timeout", "3", stdin=data)
        assert code == 7
        assert "logtool: waiting, nothing was acknowledged for" in err
        assert "no space left on the disk; free some" in err.splitlines()[0]
        (detail,) = full.admin("GET", "/v1/topics/big")["partition_details"]
        assert detail["no_space"] is True


def test_through_blipmq(logtool: Logtool) -> None:
    data = b"".join(b"v%d\n" % number for number in range(3000))
    assert logtool("publish", "blip", "--via", "blipmq", stdin=data) == (0, "3000 records acknowledged\n", "")
    assert logtool("cat", "blip")[1].encode() == data


def test_through_fujin(logtool: Logtool, process: ServerProcess, tmp_path: Path) -> None:
    data = b"".join(b"v%d\n" % number for number in range(3000))
    assert logtool("publish", "fuji", "--via", "fujin", stdin=data) == (0, "3000 records acknowledged\n", "")
    assert logtool("cat", "fuji")[1].encode() == data
    host, port = process.address("fujin")
    certificate = process.data_dir / "fujin-certificate.pem"
    elsewhere = ["publish", "fuji", "--via", f"fujin={host}:{port}", "--data-dir", str(tmp_path)]
    assert logtool(*elsewhere, "--ca", str(certificate), stdin=b"x\n") == (0, "1 record acknowledged\n", "")
    code, out, err = logtool(*elsewhere, stdin=b"x\n")  # nobody vouches for it
    assert (code, out) == (3, "")
    assert "certificate" in err


def test_what_fujin_cannot_carry(logtool: Logtool) -> None:
    code, out, err = logtool("publish", "fuji", "--via", "fujin", stdin=b"x\n\n")
    assert (code, out) == (4, "")
    assert "no records of 0 bytes" in err
    assert logtool("publish", "fuji", "--via", "fujin", "--key", "k", stdin=b"x\n")[0] == 2


def test_a_server_that_does_not_answer(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data") as silent:
        via = f"figg={silent.address('figg')[0]}:{silent.address('figg')[1]}"
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            code, out, err = logtool("publish", "topic", "--via", via, "--timeout", "0.3", stdin=b"x\n" * 10)
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        assert (code, out) == (8, "")
        assert "0 of 10 records were acknowledged, then: no acknowledgement within 0.3 s" in err

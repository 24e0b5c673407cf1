"""The tour of the README, run as it is written, and the same story on a real file with every claim checked."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from engine.errors import EngineError
from engine.reader import DirectoryReader
from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer
from tests.processes import Started
from tests.shell_blocks import Shell, matches, steps

README = Path(__file__).resolve().parents[2] / "README.md"
COMMAND_S = 60.0
# A second is until records come in, on a machine that does nothing else.
UNDER_LOAD = "until [ $(stat -c %s data/topics/1/0/*.log) -gt 2000000 ]; do sleep 0.02; done;"
LOGTOOL = [sys.executable, "-m", "tools.logtool"]

# What differs from run to run and from machine to machine; the README shows one of them.
VARYING = [
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r'(?<="timestamp_ms":)\d+'), "MS"),
    (re.compile(r"(?<=segment id        )[0-9a-f]{16}"), "ID"),
    (re.compile(r"quintlog \S+"), "quintlog VERSION"),
    (re.compile(r"(?<=data directory ).*"), "DIRECTORY"),
]
# Where the kill came decides over these: only that there is a number is compared, in any width.
COUNTED = [
    (re.compile(r"\d+ of \d+ records were acknowledged"), "N of N records were acknowledged"),
    (re.compile(r"after byte \d+, line \d+"), "after byte N, line N"),
    (re.compile(r"\d+ records in \d+\.\d [KMG]iB verified"), "N records in N verified"),
    (re.compile(r"(?<=bytes             )\d+"), "N"),
]


def plain(text: str) -> list[str]:
    for pattern, word in VARYING + COUNTED:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def table_shape(lines: list[str]) -> list[str]:
    """Rows of a table whose numbers depend on the moment of the kill: widths and large numbers do not count."""
    return [re.sub(r"\d{3,}|\d+\.\d [KMG]iB", "N", " ".join(line.split())) for line in lines]


@pytest.mark.timeout(180)
def test_readme(tmp_path: Path) -> None:
    """Every command of the tour prints what the README says; `make serve` is the server, on free ports."""
    tour = list(steps(README.read_text()))
    assert len(tour) > 8
    directory = tmp_path / "tour"
    directory.mkdir()
    process = ServerProcess(directory / "data")
    shell = Shell(directory, tmp_path / "bin")
    try:
        for step in tour:
            if step.command == "make serve":
                if process.is_running:  # the kill before was not waited for
                    process.wait()
                process.start()
                output = "\n".join(process.output)
            elif step.command.startswith("export PATH="):
                output = shell.run("export QUINTLOG_DATA_DIR=" + step.command.split("QUINTLOG_DATA_DIR=")[1])
            else:
                command = step.command.replace("http://127.0.0.1:9180", process.admin_url)
                output = shell.run(command.replace("sleep 1;", UNDER_LOAD))
            expected, actual = table_shape(plain(step.expected)), table_shape(plain(output))
            assert matches(expected, actual), (
                f"README line {step.line}: {step.command}\n--- as written\n{step.expected}\n--- now\n{output}"
            )
    finally:
        shell.close()
        if process.is_running:
            process.stop()
        process.__exit__(None, None, None)


# --- a real file


def real_file(path: Path) -> list[bytes]:
    """100,000 lines: the package log of this machine, if it has one, and a made log of requests behind it."""
    lines: list[bytes] = []
    log = Path("/var/log/dpkg.log")
    if log.exists():
        lines = log.read_bytes().splitlines()[:50_000]
    methods, codes = (b"GET", b"GET", b"GET", b"POST", b"DELETE"), (b"200", b"200", b"304", b"404", b"500")
    for number in range(100_000 - len(lines)):
        mixed = number * 2_654_435_761 % 4_294_967_296  # scattered, and the same in every run
        lines.append(
            b'10.%d.%d.%d - - [27/Nov/2026:%02d:%02d:%02d +0000] "%s /item/%d?page=%d HTTP/1.1" %s %d "-" "agent/%d"'
            % (
                mixed >> 24,
                (mixed >> 16) & 255,
                (mixed >> 8) & 255,
                number // 3600 % 24,
                number // 60 % 60,
                number % 60,
                methods[mixed % 5],
                mixed % 9973,
                mixed % 31,
                codes[mixed // 5 % 5],
                mixed % 65_536,
                mixed % 7,
            )
        )
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return lines


def logtool(data_dir: Path, *args: str, expect: int = 0) -> bytes:
    done = subprocess.run([*LOGTOOL, "--data-dir", str(data_dir), *args], capture_output=True, check=False)
    assert done.returncode == expect, done.stderr.decode()
    return done.stdout


def committed(data_dir: Path) -> int:
    """The last committed number of the topic; 0 while it has no files."""
    try:
        reader = DirectoryReader(data_dir)
        try:
            return reader.partition(reader.topic(b"requests")).committed_seq
        finally:
            reader.close()
    except EngineError:
        return 0


def feed(pipe: IO[bytes], data: bytes) -> None:
    """Writes all of it, as far as somebody reads."""
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


def publish_and_kill(process: ServerProcess, path: Path, first: int, after: int) -> int:
    """Publishes the lines from `first` on and kills the server once `after` more are in; how many were acknowledged."""
    with path.open("rb") as file:
        for _ in range(first):
            file.readline()
        rest = file.read()
    command = [*LOGTOOL, "--data-dir", str(process.data_dir), "publish", "requests", "--window", "1000"]
    before = committed(process.data_dir) if first else 0
    with Started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        assert publisher.stderr is not None
        feeder = threading.Thread(target=feed, args=(publisher.stdin, rest))
        feeder.start()
        while committed(process.data_dir) < before + after:
            assert publisher.poll() is None, "it ended before the kill"
        process.kill()
        message = publisher.stderr.read().decode()
        assert publisher.wait(COMMAND_S) == 3, message
        feeder.join()
    found = re.search(r"(\d+) of (\d+) records were acknowledged", message)
    assert found is not None, message
    acknowledged, sent = int(found[1]), int(found[2])
    assert 0 < acknowledged <= sent
    return acknowledged


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_real_file_survives_kill_9(tmp_path: Path) -> None:
    """Everything acknowledged is there, in order, once, under the same offsets; cat, dump, verify and Figg agree."""
    path = tmp_path / "requests.log"
    lines = real_file(path)
    data_dir = tmp_path / "data"
    known: list[bytes] = []
    with server(data_dir, {"topics": {"segment_bytes": "2MiB"}}) as process:
        for after in (5_000, 10_000):
            have = len(known)
            acknowledged = publish_and_kill(process, path, have, after)
            process.start()
            with FiggPeer(process.address("figg")) as peer:
                peer.read(b"requests", 0, 1)  # opens the partition, so that what recovery keeps is committed
            stored = logtool(data_dir, "cat", "requests", "--format", r"%o\t%v\n").splitlines()
            assert stored[:have] == known, "records from before the kill changed"
            assert have + acknowledged <= len(stored) <= len(lines)
            assert [line.split(b"\t", 1)[1] for line in stored] == lines[: len(stored)], "lost, doubled or reordered"
            known = stored
        rest = tmp_path / "rest.log"
        rest.write_bytes(b"".join(line + b"\n" for line in lines[len(known) :]))
        output = logtool(data_dir, "publish", "requests", str(rest))
        assert output == b"%d records acknowledged\n" % (len(lines) - len(known))
        assert logtool(data_dir, "cat", "requests") == path.read_bytes()
        numbered = logtool(data_dir, "cat", "requests", "--format", r"%o\t%v\n").splitlines()
        assert numbered[: len(known)] == known
        segments = sorted((data_dir / "topics/1/0").glob("*.log"))
        assert len(segments) > 2
        dumped = [
            logtool(data_dir, "dump", "segment", str(at), "--records", "--format", r"%o\t%v\n") for at in segments
        ]
        assert b"".join(dumped).splitlines() == numbered
        assert b"100000" in logtool(data_dir, "verify")
        with FiggPeer(process.address("figg")) as peer:
            read = peer.read(b"requests", 0, len(lines))
        assert [b"%d\t%s" % pair for pair in read] == numbered

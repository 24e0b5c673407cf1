"""The tour of the README, run as it is written, and the same story on a real file with every claim checked."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

import tools
from engine.errors import EngineError
from engine.reader import DirectoryReader
from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer

README = Path(__file__).resolve().parents[2] / "README.md"
COMMAND_S = 60.0
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


@dataclass(frozen=True)
class Step:
    """A command of the README and what it prints; a line `...` stands for any lines."""

    command: str
    expected: str
    line: int


def steps(text: str) -> Iterator[Step]:
    """The commands in the README's blocks ```console, in order."""
    command: str | None = None
    output: list[str] = []
    begun = 0
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if inside and command is not None:
                yield Step(command, "\n".join(output), begun)
            inside, command, output = line == "```console", None, []
        elif inside and line.startswith("$ "):
            if command is not None:
                yield Step(command, "\n".join(output), begun)
            command, output, begun = line[2:], [], number
        elif inside:
            output.append(line)


def plain(text: str) -> list[str]:
    for pattern, word in VARYING + COUNTED:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def table_shape(lines: list[str]) -> list[str]:
    """Rows of a table whose numbers depend on the moment of the kill: widths and large numbers do not count."""
    return [re.sub(r"\d{3,}|\d+\.\d [KMG]iB", "N", " ".join(line.split())) for line in lines]


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines are the same, `...` standing for anything."""
    pattern = "\n".join(re.escape(line).replace(r"\.\.\.", ".*") for line in table_shape(expected))
    return re.fullmatch(pattern, "\n".join(table_shape(actual)), re.DOTALL) is not None


class Shell:
    """One bash for all commands, so that variables and the working directory stay."""

    def __init__(self, directory: Path, programs: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTLOG_")}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def run(self, command: str) -> str:
        """What a command prints, both streams together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = f"--done-{time.monotonic_ns()}--"
        self._process.stdin.write(f"{command}\necho {mark}\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.rstrip("\n").endswith(mark):
                lines.append(line.rstrip("\n").removesuffix(mark))
                return "\n".join(lines)
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended in {command!r}:\n" + "\n".join(lines))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with `logtool`, whatever way this Python found it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "logtool"
    root = str(Path(tools.__path__[0]).parent)
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(root)} exec {shlex.join(LOGTOOL)} "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.mark.timeout(180)
def test_readme(tmp_path: Path, programs: Path) -> None:
    """Every command of the tour prints what the README says; `make serve` is the server, on free ports."""
    tour = list(steps(README.read_text()))
    assert len(tour) > 8
    directory = tmp_path / "tour"
    directory.mkdir()
    process = ServerProcess(directory / "data")
    shell = Shell(directory, programs)
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
                output = shell.run(step.command.replace("http://127.0.0.1:9180", process.admin_url))
            expected, actual = plain(step.expected), plain(output)
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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as publisher:
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

"""Blocks of shell commands in Markdown pages, and a shell that runs them as they are written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tools


@dataclass(frozen=True)
class Step:
    """A command of a page and what it prints; a line `...` stands for any lines."""

    command: str
    expected: str
    line: int


def steps(text: str) -> Iterator[Step]:
    """The commands in a page's blocks ```console, in order."""
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


def blocks(text: str, language: str) -> list[str]:
    """What stands in a page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines are the same, `...` standing for anything."""
    pattern = "\n".join(re.escape(line).replace(r"\.\.\.", ".*") for line in expected)
    return re.fullmatch(pattern, "\n".join(actual), re.DOTALL) is not None


class Shell:
    """One bash for all commands, so that variables and the working directory stay; `logtool` is that of this Python."""

    def __init__(self, directory: Path, programs: Path) -> None:
        """Args: directory: to work in, also the home; programs: an empty one for `logtool`."""
        programs.mkdir()
        script = programs / "logtool"
        root = str(Path(tools.__path__[0]).parent)
        start = shlex.join([sys.executable, "-m", "tools.logtool"])
        script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(root)} exec {start} "$@"\n')
        script.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUINTLOG_", "XDG_"))}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "HOME": str(directory)}
        self.status = 0
        """Of the command that was run last."""
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
        self._process.stdin.write(f"{command}\necho {mark} $?\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            before, found, after = line.rstrip("\n").partition(mark)
            if found:
                self.status = int(after)
                return "\n".join([*lines, before])
            lines.append(before)
        raise AssertionError(f"the shell ended in {command!r}:\n" + "\n".join(lines))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

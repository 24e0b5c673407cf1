"""System calls of a running server, watched and made to fail from outside, without touching its code."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

# "1234  12:00:00.1 fdatasync(7</path>) = -1 EIO (Input/output error) (INJECTED)", unfinished ones come in two lines
LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")


class Call(NamedTuple):
    """A finished system call, in the order of its end; `text` holds arguments and result."""

    name: str
    text: str


class Strace:
    """strace on all threads of a process, from `with` to its end; the process goes on afterwards.

    Args:
        calls: names of system calls that are watched.
        inject: as strace has it, for example ``fdatasync:error=EIO:when=1+``.
        path: only calls about this path (`inject`, too).
    """

    def __init__(self, pid: int, output: Path, calls: str, inject: str = "", path: Path | None = None) -> None:
        self._output = output
        command = ["strace", "-f", "-y", "-s", "64", "-p", str(pid), "-o", str(output), "-e", f"trace={calls}"]
        if inject:
            command += ["-e", f"inject={inject}"]
        if path is not None:
            command += ["-P", str(path)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:  # ends when all threads are attached, or when it failed
            if "attached" in line:
                break
        else:
            raise RuntimeError(f"strace ended with {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)

    def finished(self) -> list[Call]:
        """All calls so far; complete only after the end."""
        begun: dict[str, tuple[str, str]] = {}
        done: list[Call] = []
        for line in self._output.read_text(errors="replace").splitlines():
            if match := RESUMED.match(line):
                name, text = begun.pop(match[1], (match[2], ""))
                done.append(Call(name, text + match[3]))
            elif match := LINE.match(line):
                if match[3].endswith("<unfinished ...>"):
                    begun[match[1]] = (match[2], match[3].removesuffix("<unfinished ...>"))
                else:
                    done.append(Call(match[2], match[3]))
        return done

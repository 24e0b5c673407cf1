"""A real server process whose system's clock a test sets, while it runs.

A small library is compiled and preloaded: CLOCK_REALTIME is off by what a file says that both processes have mapped.
Only the server sees that clock; the kernel's, and that of all else, is right.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from netserver.testing import ServerProcess, Settings

COMPILER = shutil.which("gcc") or shutil.which("cc")
WAIT_S = 60
OFFSET = struct.Struct("=q")
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ms;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *found = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) offset_ms = found;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (!result && offset_ms && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_nsec + (*offset_ms % 1000) * 1000000;
        now->tv_sec += *offset_ms / 1000 + (ns < 0 ? -1 : ns >= 1000000000);
        now->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


class SteppedClock:
    """The clock of server processes: `environment` is for them, `set` moves it."""

    def __init__(self, directory: Path) -> None:
        assert COMPILER is not None
        source, library, self._path = (directory / f"clock.{end}" for end in ("c", "so", "offset"))
        source.write_text(SHIM)
        subprocess.run(
            [COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, capture_output=True, text=True
        )
        self._path.write_bytes(OFFSET.pack(0))
        with self._path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), OFFSET.size)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._path)}
        self.offset_ms = 0

    def set(self, offset_ms: int) -> None:
        """How far it is ahead from now on; negative: behind."""
        self.offset_ms = offset_ms
        self._offset[:] = OFFSET.pack(offset_ms)

    def works(self) -> bool:
        """Whether a process of Python sees it (not where preloading is forbidden)."""
        self.set(86_400_000)
        code = "import time; print(time.time())"
        environment = {**os.environ, **self.environment}
        said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.set(0)
        return abs(float(said.stdout) - time.time() - 86_400) < 3600


class Life:
    """One process of the server, and what its log says from a moment on."""

    def __init__(self, data_dir: Path, clock: SteppedClock, settings: Settings) -> None:
        self.process = ServerProcess(data_dir, settings, environment=clock.environment)
        self._seen = 0

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.__exit__(kind, error, at)

    def wait_for(self, text: str) -> float:
        """Waits until the log says something, behind what was waited for before; the time by the steady clock."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = re.compile(text).search(self.process.log_text, self._seen)
            if found:
                self._seen = found.end()
                return time.monotonic()
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{self.process.log_text[-3000:]}"
            threading.Event().wait(0.02)

    def post(self, path: str, body: bytes) -> urllib.request.Request:
        """A request of the admin API with a body that is no JSON."""
        headers = {"Authorization": f"Bearer {self.process.token}"}
        return urllib.request.Request(self.process.admin_url + path, body, headers)

    def where(self, protocol: str) -> str:
        """HOST:PORT of a listener."""
        host, port = self.process.address(protocol)
        return f"{host}:{port}"

    def facts(self) -> Any:
        """The document of its status."""
        return self.process.admin("GET", "/v1/status")

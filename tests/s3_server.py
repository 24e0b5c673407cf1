"""A real server of S3 for tests: gofakes3, which has conditional writes with one winner. Go builds it once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MODULE = "github.com/johannesboyne/gofakes3/cmd/gofakes3"
VERSION = "v1.2.0"
BUCKET = "bucket"
BUILD_S = 500
CONFIG = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


def built() -> Path:
    """The program, built when it is not there yet. Skips the test where that cannot be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintlog" / f"gofakes3-{VERSION}"
    program = cache / "gofakes3"
    if program.is_file():
        return program
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("S3 IS NOT TESTED: there is no Go to build gofakes3 with")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others build it, too
        if not program.is_file():
            aside = cache / "new"
            command = [go, "install", f"{MODULE}@{VERSION}"]
            settings = os.environ | {"GOBIN": str(aside), "GOFLAGS": ""}
            done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=BUILD_S, check=False)
            if done.returncode:
                pytest.skip(f"S3 IS NOT TESTED: gofakes3 could not be built: {done.stderr.strip()[-300:]}")
            (aside / "gofakes3").rename(program)
    return program


@contextmanager
def s3_server() -> Iterator[int]:
    """Runs one with an empty bucket in memory; its port on 127.0.0.1."""
    command = [str(built()), "-backend", "memory", "-host", "127.0.0.1:0", "-initialbucket", BUCKET]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(int(line.rsplit(":", 1)[1]) for line in process.stderr if "using port" in line)
            # It writes a line for each request, and waits when nobody reads them.
            reader = threading.Thread(target=process.stderr.read)
            reader.start()
            yield port
        finally:
            process.kill()
        reader.join()

"""The real server in surroundings that fail: stopped and continued, limits of the system, no inodes, a log that nobody
reads. A clear error, no traceback, nothing acknowledged is lost, and it goes on by itself where that is possible.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.disks import NEEDS_ROOT, make_ext4, mounted
from tests.figg_peer import FiggPeer
from tests.server_support import FIGG_ONLY, publish, segment, values, wait_for_log

STOPPED_S = 30.0 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 2.0
REFUSED_S = 0.3


@pytest.fixture
def quintlog(tmp_path: Path) -> Iterator[ServerProcess]:
    with server(tmp_path / "data", FIGG_ONLY) as process:
        assert publish(process, b"t", b"first")
        yield process
        assert "Traceback" not in process.log_text, process.log_text[-5000:]


@pytest.mark.timeout(120 + STOPPED_S)
def test_stopped_and_continued_under_load(quintlog: ServerProcess) -> None:
    """Its clients wait; their connections, and what they had sent, are there when it goes on."""
    stop = threading.Event()
    acked: list[int] = [0, 0]

    def load(who: int) -> None:
        with FiggPeer(quintlog.address("figg"), 60 + STOPPED_S) as peer:
            while not stop.is_set():
                first = peer.sent
                peer.send(b"load %d" % who, [b"%d" % (first + at) for at in range(20)])
                assert peer.wait_for_ack(peer.sent - 1)
                acked[who] = peer.sent

    loads = [threading.Thread(target=load, args=(who,)) for who in range(2)]
    for thread in loads:
        thread.start()
    while min(acked) < 100:
        time.sleep(0.005)
    os.kill(quintlog.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    before = list(acked)
    os.kill(quintlog.pid, signal.SIGCONT)
    while any(now < then + 100 for now, then in zip(acked, before, strict=True)):
        assert all(thread.is_alive() for thread in loads)
        time.sleep(0.005)
    stop.set()
    for thread in loads:
        thread.join()
    quintlog.kill()
    quintlog.start()
    for who, count in enumerate(acked):
        assert values(quintlog, b"load %d" % who, count) == [b"%d" % number for number in range(count)]


def test_files_that_may_not_grow(quintlog: ServerProcess) -> None:
    """ulimit -f: what does not fit is refused and taken back, what fits is stored; raised, all goes on."""
    size = segment(quintlog).stat().st_size
    unlimited = resource.prlimit(quintlog.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(quintlog.pid, resource.RLIMIT_FSIZE, (size + 2000, unlimited[1]))
    assert not publish(quintlog, b"t", b"x" * 3000, REFUSED_S)
    wait_for_log(quintlog, "File too large")
    assert segment(quintlog).stat().st_size == size
    assert publish(quintlog, b"t", b"second")
    resource.prlimit(quintlog.pid, resource.RLIMIT_FSIZE, unlimited)
    assert publish(quintlog, b"t", b"x" * 3000)
    quintlog.kill()
    quintlog.start()
    assert values(quintlog, b"t", 3) == [b"first", b"second", b"x" * 3000]


def test_little_memory_is_an_error_or_enough(tmp_path: Path) -> None:
    """ulimit -v: it starts and serves, or says what is missing; never a traceback."""
    served = 0
    for mib in (300, 1000):
        command = ("bash", "-c", f'ulimit -v {mib << 10}; exec "$@"', "x", sys.executable, "-m", "tools.engine_server")
        process = ServerProcess(tmp_path / f"data {mib}", FIGG_ONLY, command=command)
        said = ""
        try:
            with process:
                assert publish(process, b"t", b"first")
                assert values(process, b"t", 1) == [b"first"]
                served += 1
        except RuntimeError as refused:
            said = str(refused)
        assert "Traceback" not in said
    assert served, "a gigabyte of address space is enough"


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-", ">/dev/full 2>/dev/full"])
def test_standard_streams_that_are_closed_or_full(tmp_path: Path, closed: str) -> None:
    """The files of the log do not get their descriptors, and nothing waits for them."""
    off = {f"QUINTLOG_{name}_LISTEN".upper(): "off" for name in ("tank", "reliably", "blipmq", "fujin", "kafka")}
    free = {"QUINTLOG_FIGG_LISTEN": "127.0.0.1:0", "QUINTLOG_ADMIN_LISTEN": "127.0.0.1:0"}
    command = f'exec "$@" {closed}'
    data = tmp_path / "data"
    arguments = [sys.executable, "-m", "tools.engine_server", "--data-dir", str(data)]
    with subprocess.Popen(["bash", "-c", command, "x", *arguments], env={**os.environ, **off, **free}) as process:
        try:
            deadline = time.monotonic() + 30
            while not (data / "server.json").exists():
                assert process.poll() is None, process.returncode
                assert time.monotonic() < deadline
                time.sleep(0.01)
            names = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
            assert not any(str(data) in name for name in names), names
        finally:
            process.terminate()
        assert process.wait(30) == 0


class TestWithRoot:
    """File systems of their own."""

    pytestmark = NEEDS_ROOT

    def test_inodes_used_up(self, tmp_path: Path) -> None:
        """A new topic is refused with the reason; the others go on; with room it is made."""
        with (
            mounted("tmpfs", tmp_path / "small", "-t", "tmpfs", "-o", "size=64m,nr_inodes=60") as disk,
            server(disk / "data", FIGG_ONLY) as quintlog,
        ):
            assert publish(quintlog, b"t", b"first")
            taken = []
            try:
                for number in range(100):
                    path = disk / str(number)
                    path.touch()
                    taken.append(path)
            except OSError:
                pass
            assert not publish(quintlog, b"new", b"refused", REFUSED_S)
            wait_for_log(quintlog, "No space left on device")
            assert publish(quintlog, b"t", b"second")
            for path in taken:
                path.unlink()
            assert publish(quintlog, b"new", b"stored")
            assert values(quintlog, b"t", 2) == [b"first", b"second"]
            assert "Traceback" not in quintlog.log_text

    def test_a_file_system_that_becomes_read_only(self, tmp_path: Path) -> None:
        """Mounted read-only before the start: it says so. (A running server keeps its file system from that.)"""
        with mounted("tmpfs", tmp_path / "disk", "-t", "tmpfs", "-o", "size=64m") as disk:
            with server(disk / "data", FIGG_ONLY) as quintlog:
                assert publish(quintlog, b"t", b"first")
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            with pytest.raises(RuntimeError, match="Read-only file system") as refused:
                server(disk / "data", FIGG_ONLY).__enter__()
            assert "Traceback" not in str(refused.value)
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            with server(disk / "data", FIGG_ONLY) as quintlog:
                assert values(quintlog, b"t", 1) == [b"first"]
                busy = subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, check=False)
                assert busy.returncode != 0
                assert publish(quintlog, b"t", b"second")

    def test_a_file_system_that_makes_itself_read_only(self, tmp_path: Path) -> None:
        """ext4 after an error in its own structures (errors=remount-ro): told, nothing acknowledged is lost, readers go
        on; repaired, mounted and started again, all goes on."""
        make_ext4(tmp_path / "image", 64 << 20)
        stored = [b"first"]
        with mounted(tmp_path / "image", tmp_path / "disk", "-o", "loop,errors=remount-ro") as disk:
            source = subprocess.run(["findmnt", "-no", "SOURCE", disk], check=True, capture_output=True, text=True)
            with server(disk / "data", FIGG_ONLY) as quintlog, FiggPeer(quintlog.address("figg"), REFUSED_S) as peer:
                assert publish(quintlog, b"t", stored[0])
                peer.socket.settimeout(10)
                for number in range(200):
                    peer.send(b"t", [b"%d" % number])
                    if number == 100:
                        spoil(Path("/sys/fs/ext4") / Path(source.stdout.strip()).name / "trigger_fs_error")
                        peer.socket.settimeout(REFUSED_S)
                    try:
                        assert peer.wait_for_ack(number)
                    except TimeoutError:
                        break
                    stored.append(b"%d" % number)
                assert 101 <= len(stored) < 201, "refused from then on"
                wait_for_log(quintlog, "Read-only file system")
                assert not publish(quintlog, b"t", b"refused", REFUSED_S)
                assert not publish(quintlog, b"new", b"refused", REFUSED_S)
                assert values(quintlog, b"t", len(stored)) == stored, "readers go on"
                peer.socket.close()  # a stop waits for those whose records are not stored yet
                quintlog.stop()
                assert "Traceback" not in quintlog.log_text
                with pytest.raises(RuntimeError, match="Read-only file system") as refused:
                    quintlog.start()
                assert "Traceback" not in str(refused.value)
        repaired = subprocess.run(["e2fsck", "-fy", tmp_path / "image"], capture_output=True, check=False)
        assert repaired.returncode in (0, 1), repaired.stdout
        with (
            mounted(tmp_path / "image", tmp_path / "disk", "-o", "loop") as disk,
            server(disk / "data", FIGG_ONLY) as quintlog,
        ):
            assert values(quintlog, b"t", len(stored)) == stored
            assert publish(quintlog, b"t", b"after")
            assert publish(quintlog, b"new", b"stored")
            assert "lost" not in quintlog.log_text


def spoil(trigger: Path) -> None:
    """Has a mounted ext4 find an error; the write itself says that the file system is read-only now."""
    with contextlib.suppress(OSError):
        trigger.write_text("1")

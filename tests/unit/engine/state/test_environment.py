"""Opening LMDB environments: damaged, foreign, missing and full ones, and what a failed growth leaves."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from engine.errors import (
    Corrupt,
    DataDirectoryError,
    DiskFull,
    EngineError,
    LogLocked,
    NotStored,
    ReadOnly,
    UnsupportedFormat,
)
from engine.files.system import FILE_MODE, SystemFiles
from engine.state.environment import DATA_FILE, IN_USE_FILE, LOCK_FILE, Environment, ReadOnlyEnvironment, move_aside
from tests.processes import Started

FILES = SystemFiles()
ROOT = str(Path(__file__).resolve().parents[4])
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system")


class RecordingFiles(SystemFiles):
    """The system's files; remembers the calls, and refuses those named in `refused`."""

    def __init__(self, refused: str = "") -> None:
        self.calls: list[tuple[str, str]] = []
        self.refused = refused

    def _note(self, call: str, path: Path) -> None:
        self.calls.append((call, path.name))
        if call == self.refused:
            raise OSError(28, "No space left on device")

    def create(self, path: Path, mode: int = FILE_MODE) -> int:
        self._note("create", path)
        return super().create(path, mode)

    def make_dir(self, path: Path) -> bool:
        self._note("make_dir", path)
        return super().make_dir(path)

    def sync_dir(self, path: Path) -> None:
        self._note("sync_dir", path)
        super().sync_dir(path)

    def remove(self, path: Path) -> None:
        self._note("remove", path)
        super().remove(path)


def fill(environment: Environment, first: int, count: int, size_bytes: int = 100) -> None:
    def work(transaction: lmdb.Transaction[bytes], _: object) -> None:
        for number in range(first, first + count):
            transaction.put(b"%08d" % number, bytes(size_bytes))

    environment.write(work)


def entries(environment: Environment | ReadOnlyEnvironment) -> int:
    with environment.read() as (transaction, _):
        return int(transaction.stat()["entries"])


def made(path: Path, count: int = 1000) -> int:
    """Makes an environment and closes it; the size of its file."""
    environment = Environment(path, 1 << 30, FILES, create=True)
    fill(environment, 0, count)
    environment.close()
    return (path / DATA_FILE).stat().st_size


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_directories_are_synced_before_first_use(tmp_path: Path) -> None:
    files = RecordingFiles()
    Environment(tmp_path / "env", 1 << 30, files, create=True).close()
    assert files.calls == [
        ("make_dir", "env"), ("create", LOCK_FILE), ("create", DATA_FILE), ("create", IN_USE_FILE), ("sync_dir", "env"),
        ("sync_dir", tmp_path.name), ("remove", IN_USE_FILE),
    ]  # fmt: skip


def test_flags(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=True)
    flags = environment._environment.flags()
    assert [flags["writemap"], flags["sync"], flags["metasync"], flags["lock"]] == [False, True, True, True]
    assert environment._environment.lib_version()[:2] == (0, 9)
    environment.close()
    assert (tmp_path / "env" / DATA_FILE).stat().st_size < 64 << 10


@pytest.mark.parametrize("content", [None, b""])
def test_missing_is_an_error_unless_it_may_be_made(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "env"
    path.mkdir()
    if content is not None:
        (path / DATA_FILE).write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"is missing|is empty"):
        Environment(path, 1 << 30, FILES, create=False)
    Environment(path, 1 << 30, FILES, create=True).close()


def test_garbage_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "env"
    size_bytes = made(path)
    for content in (bytes(size_bytes), random.Random(1).randbytes(size_bytes), b"x", bytes(5000)):
        (path / DATA_FILE).write_bytes(content)
        with pytest.raises(Corrupt, match=DATA_FILE):
            Environment(path, 1 << 30, FILES, create=True)
        with pytest.raises(Corrupt):
            ReadOnlyEnvironment(path)


def test_a_file_of_the_other_library_is_told_so(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "env"), lib_version=1).close()
    with pytest.raises(UnsupportedFormat, match="another major version"):
        Environment(tmp_path / "env", 1 << 30, FILES, create=False)


def test_a_cut_file_is_found_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "env"
    size_bytes = made(path)
    for left in range(size_bytes - 4096, 4096, -4096):
        with (path / DATA_FILE).open("r+b") as file:
            file.truncate(left)
        with pytest.raises(Corrupt):
            Environment(path, 1 << 30, FILES, create=False)


def test_an_absurd_last_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "env"
    made(path)
    content = bytearray((path / DATA_FILE).read_bytes())
    for meta in (0, 4096):
        content[meta + 136 : meta + 144] = (1 << 22).to_bytes(8, sys.byteorder)
    (path / DATA_FILE).write_bytes(content)
    with pytest.raises(Corrupt, match="far beyond"):
        Environment(path, 1 << 30, FILES, create=False)


def test_a_short_file_that_is_sound_is_taken(tmp_path: Path) -> None:
    # Pages that one transaction takes and frees at the end of the file are not written.
    chosen = random.Random(1)
    path = tmp_path / "env"
    environment = Environment(path, 1 << 30, FILES, create=True)
    keys: list[bytes] = []

    def work(transaction: lmdb.Transaction[bytes], _: object) -> None:
        for _ in range(chosen.randrange(1, 60)):
            if chosen.random() < 0.55:
                keys.append(chosen.randbytes(8))
                transaction.put(keys[-1], bytes(chosen.choice([10, 500, 3000, 9000, 20000])))
            elif keys:
                transaction.delete(keys.pop(chosen.randrange(len(keys))))

    for _ in range(3000):
        environment.write(work)
        if environment.info()["used_bytes"] > (path / DATA_FILE).stat().st_size:
            break
    else:
        pytest.fail("no short file came about")
    environment.close()
    environment = Environment(path, 1 << 30, FILES, create=False)
    assert entries(environment) == len(keys)
    assert environment.trusted
    environment.close()


@pytest.mark.parametrize("closed", [True, False])
def test_damaged_pages_are_found_after_an_unclean_stop(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "env"
    size_bytes = made(path)
    if not closed:
        (path / IN_USE_FILE).touch()
    content = bytearray((path / DATA_FILE).read_bytes())
    content[8192 + 8 : size_bytes] = bytes(size_bytes - 8192 - 8)
    (path / DATA_FILE).write_bytes(content)
    with pytest.raises(Corrupt, match="faults in its structure"):
        Environment(path, 1 << 30, FILES, create=False, verify_always_bytes=1 << 30 if closed else 0)


def test_killed_and_opened_again(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.unit.engine.state.test_environment import FILES, Environment, fill
        environment = Environment(Path(sys.argv[1]), 1 << 30, FILES, create=True)
        fill(environment, 0, 500)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "env"
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(path), ROOT]
    assert subprocess.run(arguments, timeout=60, check=False).returncode == -9
    assert (path / IN_USE_FILE).exists()
    environment = Environment(path, 1 << 30, FILES, create=False)
    assert environment.trusted
    assert entries(environment) == 500
    environment.close()
    assert not (path / IN_USE_FILE).exists()


def test_too_large_to_be_verified_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "env"
    made(path)
    (path / IN_USE_FILE).touch()
    monkeypatch.setattr("engine.state.environment.LMDB_VERIFY_BYTES_MAX", 4096)
    environment = Environment(path, 1 << 30, FILES, create=False)
    assert not environment.trusted
    environment.close()


def test_what_the_system_refuses(tmp_path: Path) -> None:
    made(tmp_path / "env")
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot open"):
        Environment(tmp_path / "file", 1 << 30, FILES, create=True)
    with pytest.raises(DataDirectoryError, match="cannot open"):
        Environment(tmp_path / "new", 1 << 30, RecordingFiles("sync_dir"), create=True)
    with pytest.raises(DataDirectoryError, match="cannot open"), limited(resource.RLIMIT_AS, 1 << 20):
        Environment(tmp_path / "env", 1 << 40, FILES, create=False)
    with pytest.raises(DataDirectoryError, match="cannot open"):
        ReadOnlyEnvironment(tmp_path / "env", [b"no such database"])


def test_a_smaller_map_where_addresses_are_limited(tmp_path: Path) -> None:
    with little_memory(512 << 20):
        environment = Environment(tmp_path / "env", 64 << 30, FILES, create=True)
        assert 64 << 20 <= environment.map_bytes <= 512 << 20
        fill(environment, 0, 100)
        assert entries(environment) == 100
        environment.close()


def test_no_room_for_the_mark_does_not_stop_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path / "env")
    environment = Environment(tmp_path / "env", 1 << 30, RecordingFiles("create"), create=False)
    assert "cannot mark" in caplog.text
    environment.close()
    environment = Environment(tmp_path / "env", 1 << 30, RecordingFiles("remove"), create=False)
    environment.close()
    assert "was closed" in caplog.text
    assert (tmp_path / "env" / IN_USE_FILE).exists()


def test_opened_once_in_a_process(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=True)
    with pytest.raises(LogLocked):
        Environment(tmp_path / "env", 1 << 30, FILES, create=True)
    environment.close()


def nearly_full(path: Path, **settings: object) -> tuple[Environment, int]:
    """An environment whose map must grow for the next 4 MiB, and the number of its entries."""
    environment = Environment(path, 64 << 20, FILES, create=True, **settings)
    while environment.info()["used_bytes"] < 60 << 20:
        fill(environment, entries(environment), 16, 32 << 10)
    return environment, entries(environment)


@contextmanager
def little_memory(more_bytes: int) -> Iterator[None]:
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited(resource.RLIMIT_AS, own_bytes + more_bytes):
        yield


def test_growth_refused_by_the_system_leaves_the_old_map(tmp_path: Path) -> None:
    environment, count = nearly_full(tmp_path / "env", databases=[b"one"])
    with little_memory(32 << 20), pytest.raises(DiskFull, match="gives no more"):
        fill(environment, count, 100, 64 << 10)
    assert environment.error is None
    assert environment.map_bytes == 64 << 20
    assert entries(environment) == count
    fill(environment, count, 100, 64 << 10)
    assert entries(environment) == count + 100
    environment.close()


def test_growth_that_cannot_go_back_ends_writing(tmp_path: Path) -> None:
    environment, count = nearly_full(tmp_path / "env")
    no_files = limited(resource.RLIMIT_NOFILE, 3)
    with little_memory(32 << 20), no_files, pytest.raises(ReadOnly, match="until a restart"):
        fill(environment, count, 100, 64 << 10)
    with pytest.raises(ReadOnly):
        fill(environment, 0, 1)
    with pytest.raises(DataDirectoryError, match="cannot read"):
        entries(environment)
    environment.reader_check()
    environment.close()
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=False)
    assert entries(environment) == count
    environment.close()


def test_too_little_memory_refuses_one_transaction(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=True)
    with little_memory(16 << 20), pytest.raises(NotStored, match="not enough memory"):
        fill(environment, 0, 900, 1 << 20)  # more than earlier tests may have left free in this process
    assert entries(environment) == 0
    fill(environment, 0, 100, 1 << 20)
    assert entries(environment) == 100
    environment.close()


def test_a_reader_follows_growth_by_another_process(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.unit.engine.state.test_environment import FILES, Environment, fill
        environment = Environment(Path(sys.argv[1]), 64 << 10, FILES, create=True)
        for line in sys.stdin:
            fill(environment, 0, int(line), 1000)
            print(environment.map_bytes, flush=True)
        environment.close()
    """
    path = tmp_path / "env"
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(path), ROOT]
    with Started(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        reader = None
        for count in (10, 20_000):
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            map_bytes = int(process.stdout.readline())
            reader = reader or ReadOnlyEnvironment(path)
            assert entries(reader) == count
        assert map_bytes > 10 << 20
        process.stdin.close()
        assert process.wait(30) == 0
        reader.close()


def test_moved_aside_under_a_free_name(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        made(tmp_path / "env", number)
        assert move_aside(tmp_path / "env", FILES) == tmp_path / f"env.damaged-{number}"
    environment = ReadOnlyEnvironment(tmp_path / "env.damaged-2")
    assert entries(environment) == 2
    environment.close()
    with pytest.raises(DataDirectoryError):
        entries(environment)


@contextmanager
def small_disk(tmp_path: Path, size_kib: int) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill_disk(mount: Path) -> None:
    with (mount / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@pytest.mark.root
@needs_root
def test_a_write_that_a_full_disk_cuts_short_is_no_defect_of_the_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, 1024) as mount:
        environment = Environment(mount / "env", 1 << 30, FILES, create=True)
        fill(environment, 0, 10)
        fill_disk(mount)
        filler = mount / "filler"
        os.truncate(filler, filler.stat().st_size - 5 * 4096)
        with pytest.raises(DiskFull):
            fill(environment, 10, 1, 100_000)  # one write of 25 pages
        assert environment.error is None
        filler.unlink()
        fill(environment, 10, 1, 100_000)
        assert entries(environment) == 11
        environment.close()


@pytest.mark.root
@needs_root
def test_a_full_disk_is_an_error_never_a_signal(tmp_path: Path) -> None:
    with small_disk(tmp_path, 1024) as mount:
        environment = Environment(mount / "env", 1 << 30, FILES, create=True)
        fill(environment, 0, 10)
        fill_disk(mount)
        with pytest.raises(DiskFull):
            fill(environment, 10, 100, 4000)
        assert entries(environment) == 10
        environment.close()
        # A start on a full disk: an existing environment opens, a new one is refused.
        environment = Environment(mount / "env", 1 << 30, FILES, create=False)
        with pytest.raises(DiskFull):
            fill(environment, 10, 100, 4000)
        assert entries(environment) == 10
        with pytest.raises(EngineError):
            Environment(mount / "new", 1 << 30, FILES, create=True)
        (mount / "filler").unlink()
        fill(environment, 10, 100, 4000)
        assert entries(environment) == 110
        environment.close()


@pytest.mark.root
@needs_root
def test_a_lost_lock_file_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    # LMDB makes its lock file with holes and maps it: writing into them would be a SIGBUS here.
    with small_disk(tmp_path, 256) as mount:
        made(mount / "env", 10)
        (mount / "env" / LOCK_FILE).unlink()
        fill_disk(mount)
        with pytest.raises(DataDirectoryError, match="No space left"):
            Environment(mount / "env", 1 << 30, FILES, create=False)
        (mount / "filler").unlink()
        environment = Environment(mount / "env", 1 << 30, FILES, create=False)
        assert entries(environment) == 10
        environment.close()


def test_a_copy_without_its_lock_file_opens(tmp_path: Path) -> None:
    made(tmp_path / "env", 10)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "env" / DATA_FILE, tmp_path / "copy" / DATA_FILE)
    environment = Environment(tmp_path / "copy", 1 << 30, FILES, create=False)
    assert entries(environment) == 10
    environment.close()


def test_an_io_error_where_room_cannot_even_be_asked_for_is_no_full_disk(tmp_path: Path) -> None:
    made(tmp_path / "env")
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=False)
    error = lmdb.Error("mdb_txn_commit")
    error.code = errno.EIO
    shutil.move(tmp_path / "env", tmp_path / "gone")
    assert isinstance(environment._failed(error), ReadOnly)
    environment.close()


def test_a_copy_holds_the_same_and_says_why_it_cannot_be_made(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=True)
    fill(environment, 0, 100)
    environment.close()
    reader = ReadOnlyEnvironment(tmp_path / "env")
    (tmp_path / "copy").mkdir()
    reader.copy(tmp_path / "copy")
    with pytest.raises(DataDirectoryError, match=r"cannot copy .*/env to .*/missing: "):
        reader.copy(tmp_path / "missing")
    full = lmdb.Error("mdb_env_copy2")
    full.code = errno.ENOSPC
    lmdb_environment = reader._environment

    class Full:
        def copy(self, path: str) -> None:
            raise full

    reader._environment = Full()
    with pytest.raises(DiskFull, match="no space for a copy"):
        reader.copy(tmp_path / "copy")
    reader._environment = lmdb_environment
    reader.close()
    copied = ReadOnlyEnvironment(tmp_path / "copy")
    assert entries(copied) == 100
    copied.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_written_into_a_file_that_nobody_would_find(tmp_path: Path, replaced: bool) -> None:
    made(tmp_path / "env", 10)
    environment = Environment(tmp_path / "env", 1 << 30, FILES, create=False)
    (tmp_path / "env" / DATA_FILE).rename(tmp_path / "elsewhere")
    if replaced:
        shutil.copy(tmp_path / "elsewhere", tmp_path / "env" / DATA_FILE)
    with pytest.raises(ReadOnly, match="was moved, replaced or removed"):
        fill(environment, 10, 1)
    with pytest.raises(ReadOnly):
        fill(environment, 10, 1)
    environment.close()

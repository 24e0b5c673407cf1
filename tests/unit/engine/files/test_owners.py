"""Owners and modes: root lends a hand in a directory of somebody else's, and everything there stays the owner's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import DataDirectoryError
from engine.files.owners import refused_by, told
from engine.files.system import SystemFiles, write_new_file
from engine.state.environment import LOCK_FILE
from engine.state.store import StateReader
from netserver.access.key_file import add_key, revoke_key
from tests.engine_log import EngineLog, segments
from tests.unit.conftest import Logtool
from tests.users import NOBODY, as_nobody, needs_root, open_folder, owner_and_mode

FILES = SystemFiles()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory of somebody else's, that everybody can reach."""
    path = tmp_path / "foreign"
    path.mkdir(0o755)
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.mark.root
@needs_root
def test_what_root_makes_belongs_to_the_owner_of_the_directory(foreign: Path) -> None:
    FILES.close(FILES.create(foreign / "file"))
    FILES.make_dir(foreign / "directory")
    write_new_file(FILES, foreign / "written", b"x")
    for name in ("file", "directory", "written"):
        assert owner_and_mode(foreign / name)[0] == NOBODY, name
    (foreign / "directory").chmod(0o700)
    FILES.make_dir(foreign / "directory")
    assert owner_and_mode(foreign / "directory") == (NOBODY, 0o700), "one that is there is left as it is"


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_key_file_keeps_owner_and_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    add_key(path, "one")
    assert owner_and_mode(path) == (0, 0o600), "a new one is private"
    os.chown(path, NOBODY, NOBODY)
    path.chmod(mode)
    add_key(path, "two")
    assert revoke_key(path, "one")
    assert owner_and_mode(path) == (NOBODY, mode)


def test_a_key_file_behind_a_link_is_changed_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    add_key(tmp_path / "place" / "keys", "one")
    (tmp_path / "keys").symlink_to("place/keys")
    add_key(tmp_path / "keys", "two")
    assert (tmp_path / "keys").is_symlink()
    assert (tmp_path / "place" / "keys").read_text().count("\n") == 2


@pytest.mark.root
@needs_root
def test_a_file_of_somebody_elses_is_not_replaced_by_one_of_ours() -> None:
    with open_folder() as directory:
        directory.chmod(0o777)
        path = directory / "file"
        path.write_bytes(b"old")
        path.chmod(0o644)
        with as_nobody(), pytest.raises(PermissionError) as refused:
            write_new_file(FILES, path, b"new")
        with as_nobody():
            text = told(refused.value)
        assert text.startswith(f"{path}: Operation not permitted; {path} belongs to root (mode 0644): `sudo -u root")
        assert path.read_bytes() == b"old"
        assert os.listdir(directory) == ["file"]


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_the_mode_of_a_new_file_is_as_asked_for(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_new_file(FILES, tmp_path / "usual", b"")
        write_new_file(FILES, tmp_path / "secret", b"", 0o600)
        write_new_file(FILES, tmp_path / "open", b"", 0o644)
    finally:
        os.umask(before)
    modes = {name: owner_and_mode(tmp_path / name)[1] for name in ("usual", "secret", "open")}
    assert modes == {"usual": 0o640 & ~umask, "secret": 0o600, "open": 0o644}


def test_links_are_not_followed_when_a_file_is_written(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"precious")
    for name in ("file", "file.new"):
        (tmp_path / name).symlink_to(treasure)
    write_new_file(FILES, tmp_path / "file", b"written", 0o600)
    assert treasure.read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"written"
    assert not (tmp_path / "file").is_symlink()
    (tmp_path / "made").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        FILES.create(tmp_path / "made")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("write", [False, True])
def test_a_pipe_or_a_directory_in_a_files_place_is_refused_at_once(tmp_path: Path, write: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=rf"{tmp_path}/pipe: not a regular file"):
        FILES.open(tmp_path / "pipe", write=write)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        FILES.open(tmp_path, write=write)
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_refusals_for_want_of_a_right_name_an_owner(tmp_path: Path) -> None:
    assert refused_by(PermissionError(13, "Permission denied", str(tmp_path))) == "", "it is ours"
    assert refused_by(PermissionError(13, "Permission denied")) == ""
    assert told(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    assert told(OSError("odd")) == "odd"


# --- a whole data directory of somebody else's


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A log that nobody has written and closed, with a torn end, and without LMDB's lock files, as a copy has none."""
    with open_folder() as folder:
        os.chown(folder, NOBODY, NOBODY)
        data = folder / "data"
        with as_nobody(), EngineLog(data) as engine:
            engine.append([b"one", b"two"])
        with segments(data)[-1].open("ab") as file:
            file.write(b"torn")
        for name in ("state", "index"):
            (data / name / LOCK_FILE).unlink()
        yield data


def everything(data: Path) -> dict[str, tuple[int, int]]:
    return {str(path.relative_to(data)): owner_and_mode(path) for path in (data, *data.rglob("*"))}


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    "command",
    ["status", "topics list", "cat t", "verify", "sessions list", "subscriptions list", "repair", "check",
     "definitions export -"],
)  # fmt: skip
def test_reading_commands_leave_nothing_behind(of_nobody: Path, logtool: Logtool, command: str) -> None:
    before = everything(of_nobody)
    logtool("--data-dir", str(of_nobody), *command.split())
    assert everything(of_nobody) == before


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    "command", ["repair --apply --yes", "topics create new", "topics delete t --yes", "topics set t retention_ms=1d"]
)
def test_what_root_changes_stays_the_owners(of_nobody: Path, logtool: Logtool, command: str) -> None:
    code, _, err = logtool("--data-dir", str(of_nobody), *command.split())
    assert code == 0, err
    found = everything(of_nobody)
    assert {name: owner for name, (owner, _) in found.items() if owner != NOBODY} == {}
    if command.startswith("repair"):
        assert any(name.startswith("set-aside/") for name in found)
    with as_nobody(), EngineLog(of_nobody) as engine:
        engine.append([b"three"])


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("name", ["state/lock.mdb", "state/data.mdb", "watermarks", "VERSION", "LOCK"])
def test_a_file_that_is_not_ours_is_named_with_its_owner(of_nobody: Path, name: str) -> None:
    """As an older version left some, or a `cp` by root."""
    path = of_nobody / name
    path.touch()
    os.chown(path, 0, 0)
    path.chmod(0o600)
    with as_nobody(), pytest.raises(DataDirectoryError, match=f"{path}: Permission denied; {path} belongs to root "):
        EngineLog(of_nobody)


def test_a_state_without_a_lock_file_is_read_while_somebody_begins_to_write(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        engine.append([b"x"])
    (tmp_path / "d" / "state" / LOCK_FILE).unlink()
    state = StateReader.open(tmp_path / "d" / "state")
    before = dict(state.scan(b""))
    assert not (tmp_path / "d" / "state" / LOCK_FILE).exists()
    child = subprocess.run(
        [sys.executable, "-c", APPEND, str(tmp_path / "d")], check=False, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr
    assert len(list(state.scan(b""))) > len(before)
    state.close()


APPEND = """
import sys
from pathlib import Path
from tests.engine_log import EngineLog
with EngineLog(Path(sys.argv[1])) as engine:
    engine.append([b"y"], topic="new")
"""


def test_a_pipe_in_the_place_of_a_segment_is_a_finding(tmp_path: Path, logtool: Logtool) -> None:
    """Commands do not wait for somebody at its other end; other topics are checked and served."""
    data = tmp_path / "d"
    with EngineLog(data) as engine:
        engine.append([b"x"])
        engine.append([b"x"], topic="other")
    (path,) = segments(data)
    path.unlink()
    os.mkfifo(path)
    os.mkfifo(data / "server.json")
    code, _, err = logtool("--data-dir", str(data), "verify")
    assert code == 1, err
    assert str(path) in err
    assert "is no file" in err
    assert logtool("--data-dir", str(data), "cat", "other") == (0, "x\n", "")
    assert logtool("--data-dir", str(data), "status")[0] in (0, 1)
    with EngineLog(data) as engine:
        with pytest.raises(DataDirectoryError, match="no segment files, but records 1 to 1 were committed"):
            engine.partition()
        assert engine.values("other") == [b"x"]

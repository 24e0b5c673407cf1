"""Owners and modes: root lends a hand in a directory of somebody else's, and everything there stays the owner's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.files.owners import refused_by, told
from engine.files.system import SystemFiles, write_new_file
from netserver.access.auth import add_key, revoke_key
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
    with pytest.raises(OSError, match=rf"not a regular file: '{tmp_path}/pipe'"):
        FILES.open(tmp_path / "pipe", write=write)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        FILES.open(tmp_path, write=write)
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_refusals_for_want_of_a_right_name_an_owner(tmp_path: Path) -> None:
    assert refused_by(PermissionError(13, "Permission denied", str(tmp_path))) == "", "it is ours"
    assert refused_by(PermissionError(13, "Permission denied")) == ""
    assert told(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    assert told(OSError("odd")) == "odd"

"""The round writer by itself: what it writes and syncs without the interpreter, what it refuses, how it says so."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.commit.round_writer import COMPILED, DONE, SYNC, WRITE, RoundWriter, places
from engine.limits import ROUND_PARTS_MAX, ROUND_PIECES_MAX
from engine.segments.watermarks import SLOT_BYTES
from tests.round_files import largest_file, not_to_be_synced

pytestmark = [pytest.mark.checked, pytest.mark.skipif(not COMPILED, reason="only where it is compiled")]

MARK = bytes(range(SLOT_BYTES))


class Writer:
    """A round writer with its thread."""

    def __init__(self, path: Path) -> None:
        self.wake_fd, self.done_fd = os.eventfd(0), os.eventfd(0)
        self.file = os.open(path / "data", os.O_RDWR | os.O_CREAT)
        self.marks = os.open(path / "marks", os.O_RDWR | os.O_CREAT)
        self.writer = RoundWriter(self.wake_fd, self.done_fd)
        self.threads = [threading.Thread(target=work) for work in (self.writer.serve, *[self.writer.help] * 3)]
        for thread in self.threads:
            thread.start()

    def part(self, *pieces: bytes, position: int = 0, fd: int | None = None, mark_fd: int | None = None) -> None:
        self.writer.part(
            self.file if fd is None else fd, position, True, mark_fd or self.marks, MARK, SLOT_BYTES * (1 + position)
        )
        for piece in pieces:
            self.writer.add(bytearray(piece), len(piece))

    def is_told(self, timeout_s: float) -> bool:
        """Whether `done_fd` says within that time that a round is done."""
        looking = select.poll()  # unlike select() it takes any descriptor
        looking.register(self.done_fd, select.POLLIN)
        return bool(looking.poll(timeout_s * 1000))

    def submit(self) -> list[tuple[int, int, int]]:
        """Of each part: (where it ended, errno, errno of the mark)."""
        self.writer.submit()
        assert self.is_told(30)
        os.eventfd_read(self.done_fd)
        ends, sync_seconds = self.writer.take()
        assert 0 <= sync_seconds < 30
        return ends

    def round(self, *pieces: bytes, fd: int | None = None, mark_fd: int | None = None) -> list[int]:
        """A round of one part: (where it ended, errno, errno of the mark)."""
        self.part(*pieces, fd=fd, mark_fd=mark_fd)
        (end,) = self.submit()
        return list(end)

    def close(self) -> None:
        self.writer.stop()
        for thread in self.threads:
            thread.join()
        for fd in (self.wake_fd, self.done_fd, self.file, self.marks):
            os.close(fd)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.close()


def test_the_limits_are_what_the_compiled_code_has_room_for() -> None:
    assert places() == (ROUND_PARTS_MAX, ROUND_PIECES_MAX, SLOT_BYTES)


def test_pieces_and_marks_are_written(writer: Writer, tmp_path: Path) -> None:
    assert writer.round(b"abc", b"", b"defg") == [DONE, 0, 0]
    assert writer.round(*[b"x"] * ROUND_PIECES_MAX) == [DONE, 0, 0]
    assert (tmp_path / "data").read_bytes() == b"x" * ROUND_PIECES_MAX
    assert (tmp_path / "marks").read_bytes() == bytes(SLOT_BYTES) + MARK


@pytest.mark.parametrize("count", [2, 3, 4, 5, ROUND_PARTS_MAX])
def test_parts_are_written_each_to_its_file(writer: Writer, tmp_path: Path, count: int) -> None:
    """With fewer helpers than files, as many, and more."""
    paths = [tmp_path / str(number) for number in range(count)]
    files = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    for turn in range(100):
        for number, fd in enumerate(files):
            writer.part(b"%02d" % number, b"%02d" % turn, position=number, fd=fd)
        assert writer.submit() == [(DONE, 0, 0)] * count
    for number, path in enumerate(paths):
        assert path.read_bytes() == bytes(number) + b"%02d99" % number
    assert (tmp_path / "marks").read_bytes() == bytes(SLOT_BYTES) + MARK * count
    for fd in files:
        os.close(fd)


def test_a_part_that_fails_is_one_of_several(writer: Writer, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "data", os.O_RDONLY)
    with not_to_be_synced() as unsyncable:
        for turn in range(20):
            writer.part(b"first")
            writer.part(b"unsynced", position=1, fd=unsyncable)
            writer.part(b"unwritten", position=2, fd=read_only)
            writer.part(b"unmarked", position=3, mark_fd=read_only)
            writer.part(b"last%d" % (turn % 10), position=20)
            assert writer.submit() == [
                (DONE, 0, 0),
                (SYNC, errno.EINVAL, 0),
                (WRITE, errno.EBADF, 0),
                (DONE, 0, errno.EBADF),
                (DONE, 0, 0),
            ]
    os.close(read_only)
    assert (tmp_path / "data").read_bytes() == b"firunmarked".ljust(20, b"\0") + b"last9"
    assert (tmp_path / "marks").read_bytes() == bytes(SLOT_BYTES) + MARK + bytes(19 * SLOT_BYTES) + MARK


def test_a_round_without_a_thread(writer: Writer, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "data", os.O_RDONLY)
    for number in range(3):
        writer.part(b"%d" % number, b"abc", position=4 * number)
    writer.part(b"unwritten", position=12, fd=read_only)
    writer.writer.perform()
    assert not writer.writer.is_done()
    with pytest.raises(ValueError, match="under way"):
        writer.writer.perform()
    ends, _ = writer.writer.take()
    assert ends == [(DONE, 0, 0)] * 3 + [(WRITE, errno.EBADF, 0)]
    assert (tmp_path / "data").read_bytes() == b"0abc1abc2abc"
    assert not writer.is_told(0)
    os.close(read_only)


def test_failures_say_where(writer: Writer, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "data", os.O_RDONLY)
    reader, pipe = os.pipe()
    assert writer.round(b"a", fd=read_only) == [WRITE, errno.EBADF, 0]
    assert writer.round(b"a", mark_fd=read_only) == [DONE, 0, errno.EBADF]
    assert writer.round(b"a", fd=pipe)[0] == WRITE
    with not_to_be_synced() as fd:
        assert writer.round(b"a", fd=fd) == [SYNC, errno.EINVAL, 0]
    for fd in (read_only, reader, pipe):
        os.close(fd)
    assert (tmp_path / "marks").read_bytes() == b""


def test_a_write_that_is_cut_short_fails(writer: Writer, tmp_path: Path) -> None:
    with largest_file(100):
        assert writer.round(b"a" * 80, b"b" * 80) == [WRITE, errno.EFBIG, 0]
    assert (tmp_path / "data").read_bytes() == b"a" * 80 + b"b" * 20
    assert writer.round(b"c" * 160) == [DONE, 0, 0]


def test_buffers_are_held_during_a_round_only(writer: Writer) -> None:
    buffer = bytearray(10)
    writer.part()
    writer.writer.add(buffer, 10)
    with pytest.raises(BufferError):
        buffer.append(1)
    assert writer.submit() == [(DONE, 0, 0)]
    buffer.append(1)


def test_misuse_is_refused(writer: Writer) -> None:
    with pytest.raises(ValueError, match="no round"):
        writer.writer.take()
    with pytest.raises(ValueError, match="piece"):
        writer.writer.add(bytearray(3), 3)
    writer.part()
    for size in (-1, 4):
        with pytest.raises(ValueError, match="piece"):
            writer.writer.add(bytearray(3), size)
    for begin in (writer.writer.submit, writer.writer.perform):
        with pytest.raises(ValueError, match="nothing"):
            begin()
    with pytest.raises(ValueError, match="size"):
        writer.writer.part(writer.file, 0, True, writer.marks, MARK[1:], 0)
    for _ in range(ROUND_PARTS_MAX - 1):
        writer.part()
    with pytest.raises(ValueError, match="parts"):
        writer.part()
    for _ in range(ROUND_PIECES_MAX):
        writer.writer.add(bytearray(1), 1)
    with pytest.raises(ValueError, match="piece"):
        writer.writer.add(bytearray(1), 1)
    writer.writer.clear()
    assert writer.round(b"x") == [DONE, 0, 0]


def test_a_removed_file_fails_at_the_sync(writer: Writer, tmp_path: Path) -> None:
    assert writer.round(b"a") == [DONE, 0, 0]
    (tmp_path / "data").unlink()
    assert writer.round(b"b") == [SYNC, errno.ENOENT, 0]

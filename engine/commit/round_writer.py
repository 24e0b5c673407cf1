# cython: annotation_typing=False
"""A round of a few files, done by threads that never need the interpreter: write, fdatasync, watermarks.

The way of a round through a Python thread costs two hand-overs of the interpreter's lock, each of several switches
between threads, and a wait for it after every system call while the loop is busy: as much as the sync itself at a
window of one message. Here the owner's thread says what is to be written, an eventfd wakes the other one, and another
eventfd tells the owner (`engine.commit.native_rounds` has it watched). One round at a time. The syncs of several files
are made at the same time, by helpers.

Only where it is compiled: the system calls are in C, in the declarations beside this text, since Python's own give the
lock back and take it again around each of them. They are those of `engine.files.system.SystemFiles`, in the order of
`engine.commit.round_steps`.
"""

# ruff: noqa: F821 - the names ql_... and QL_... are C functions and sizes of the declarations

from __future__ import annotations

COMPILED = not __file__.endswith(".py")

DONE, WRITE, SYNC = range(3)
"""Where a file's part of a round ended: not at all, at the write, at the sync."""


def places() -> tuple[int, int, int]:
    """The sizes of the C arrays, which nothing else says: parts, pieces, and bytes of a slot."""
    return QL_PARTS, QL_PIECES, QL_MARK_BYTES  # type: ignore[name-defined]


class RoundWriter:
    """One round at a time: for each file a `part` and `add` its buffers; `submit`; when `done_fd` is readable, `take`.

    All but `serve` and `help` on the owner's thread. The descriptors are eventfds, and stay the caller's.
    """

    def __init__(self, wake_fd: int, done_fd: int) -> None:
        self.job = ql_made()  # type: ignore[name-defined]
        self.wake_fd = wake_fd
        self.done_fd = done_fd
        self.pinned: list[memoryview] = []
        self.busy = False

    def __dealloc__(self) -> None:
        ql_free(self.job)  # type: ignore[name-defined]

    def part(self, fd: int, position: int, sync: bool, mark_fd: int, mark: bytes, mark_position: int) -> None:
        """Begins the part of a file: what is added goes to ``position`` of ``fd``, which is synced if ``sync`` says so.

        If that went well, the watermark's slot ``mark`` is written to ``mark_position`` of ``mark_fd``.

        Raises ValueError if a round is under way, there are too many parts, or the slot has another size.
        """
        job = self.job
        if self.busy or job.parts >= QL_PARTS or len(mark) != QL_MARK_BYTES:  # type: ignore[name-defined]
            raise ValueError("a round is under way, it has too many parts, or the slot has another size")
        ql_begin_part(job, fd, position, sync)  # type: ignore[name-defined]
        ql_set_mark(job, mark_fd, mark_position, mark)  # type: ignore[name-defined]

    def add(self, buffer: bytearray, size: int) -> None:
        """Has the part that was begun last write ``buffer[:size]`` after what was added to it before.

        The buffer must not be changed until the round is over.

        Raises ValueError if a round is under way, no part was begun, the range is not in the buffer, or there are too
        many.
        """
        job = self.job
        is_full = job.count >= QL_PIECES  # type: ignore[name-defined]
        if self.busy or not job.parts or is_full or size < 0 or size > len(buffer):
            raise ValueError("a round is under way, or the piece cannot be one of it")
        self.pinned.append(memoryview(buffer))  # nobody may resize it meanwhile
        ql_piece(job, buffer, size)  # type: ignore[name-defined]

    def clear(self) -> None:
        """Forgets parts and pieces; nothing when a round is under way."""
        if not self.busy:
            self.pinned = []
            self.job.parts = self.job.count = 0

    def submit(self) -> None:
        """Begins the round: all writes, then all syncs, then the slots of those files that had no failure.

        Raises ValueError if a round is under way, or there is nothing to write.
        """
        if self.busy or not self.pinned:
            raise ValueError("a round is under way, or there is nothing to write")
        self.busy = True
        ql_begin(self.job)  # type: ignore[name-defined]
        ql_wake(self.wake_fd)  # type: ignore[name-defined]

    def perform(self) -> None:
        """The same as `submit`, but does the round itself; `done_fd` says nothing of it.

        Raises ValueError if a round is under way, or there is nothing to write.
        """
        if self.busy or not self.pinned:
            raise ValueError("a round is under way, or there is nothing to write")
        self.busy = True
        ql_begin(self.job)  # type: ignore[name-defined]
        ql_perform_here(self.job)  # type: ignore[name-defined]

    def is_done(self) -> bool:
        """Whether the round under way is done, or as good as that: `done_fd` is about to be readable."""
        return self.busy and bool(ql_is_done(self.job))  # type: ignore[name-defined]

    def take(self) -> tuple[list[tuple[int, int, int]], float]:
        """Ends the round: for each part (where it failed or `DONE`, its errno, errno of the slot's write or 0); and the
        seconds of the syncs.

        Raises ValueError if there was none.
        """
        if not self.busy:
            raise ValueError("no round is under way")
        self.busy = False
        job = self.job
        ends = []
        for index in range(job.parts):
            ends.append((job.part[index].failed_at, job.part[index].error, job.part[index].mark_error))
        self.clear()
        return ends, job.sync_seconds

    def serve(self) -> None:
        """Does the rounds, on a thread of its own, until `stop`."""
        ql_serve(self.job, self.wake_fd, self.done_fd)  # type: ignore[name-defined]

    def help(self) -> None:
        """Syncs files of a round that has several, on a thread of its own, until `serve` ends.

        Without helpers a round is as well done, one sync after the other.
        """
        ql_help(self.job)  # type: ignore[name-defined]

    def stop(self) -> None:
        """Ends `serve`, after the round that is under way, and then `help`."""
        self.job.stopping = True
        ql_wake(self.wake_fd)  # type: ignore[name-defined]

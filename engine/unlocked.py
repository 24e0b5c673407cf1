# cython: annotation_typing=False
"""A round of one file, done by a thread that never needs the interpreter: write, fdatasync, watermark.

The way of a round through a Python thread costs two hand-overs of the interpreter's lock, each of several switches
between threads, and a wait for it after every system call while the loop is busy: as much as the sync itself at a
window of one message. Here the owner's thread says what is to be written, an eventfd wakes the other one, and another
eventfd tells the owner (`engine.quick` has it watched). One round at a time.

Only where it is compiled: the system calls are in C, in the declarations beside this text, since Python's own give the
lock back and take it again around each of them. They are those of `engine.files.SystemFiles`, in the order of
`engine.committer`.
"""

# ruff: noqa: F821 - the names ql_... are C functions of the declarations

from __future__ import annotations

from engine.limits import ROUND_PIECES_MAX

COMPILED = not __file__.endswith(".py")

MARK_BYTES = 64
"""Size of a watermark's slot."""
DONE, WRITE, SYNC = range(3)
"""Where a round ended: not at all, at the write, at the sync."""

PIECES = ROUND_PIECES_MAX  # the C variable


class RoundWriter:
    """One round at a time: `add` the buffers, `submit`; when `done_fd` is readable, `take` the outcome.

    All but `serve` on the owner's thread. The descriptors are eventfds, and stay the caller's.
    """

    def __init__(self, wake_fd: int, done_fd: int) -> None:
        self.job = ql_new()  # type: ignore[name-defined]
        self.wake_fd = wake_fd
        self.done_fd = done_fd
        self.pinned: list[memoryview] = []
        self.busy = False

    def __dealloc__(self) -> None:
        ql_free(self.job)  # type: ignore[name-defined]

    def add(self, buffer: bytearray, size: int) -> None:
        """Has the next round write ``buffer[:size]`` behind what was added before; it must not be changed until then.

        Raises ValueError if a round is under way, the range is not in the buffer, or there are too many.
        """
        if self.busy or len(self.pinned) >= PIECES or size < 0 or size > len(buffer):
            raise ValueError("a round is under way, or the piece cannot be one of it")
        if not self.pinned:
            self.job.count = 0
        self.pinned.append(memoryview(buffer))  # nobody may resize it meanwhile
        ql_piece(self.job, buffer, size)  # type: ignore[name-defined]

    def clear(self) -> None:
        """Forgets what was added; nothing when a round is under way."""
        if not self.busy:
            self.pinned = []

    def submit(self, fd: int, position: int, sync: bool, mark_fd: int, mark: bytes, mark_position: int) -> None:
        """Begins the round: the buffers to ``position`` of ``fd``, fdatasync if ``sync``, then the watermark's slot.

        Raises ValueError if nothing was added, or the slot has another size.
        """
        if self.busy or not self.pinned or len(mark) != MARK_BYTES:
            raise ValueError("a round is under way, there is nothing to write, or the slot has another size")
        self.busy = True
        job = self.job
        job.fd = fd
        job.position = position
        job.sync = sync
        job.mark_fd = mark_fd
        job.mark_position = mark_position
        ql_set_mark(job, mark)  # type: ignore[name-defined]
        ql_wake(self.wake_fd)  # type: ignore[name-defined]

    def take(self) -> tuple[int, int, int, float]:
        """Ends the round: (where it failed or `DONE`, its errno, errno of the watermark's write or 0, seconds of sync).

        Raises ValueError if there was none.
        """
        if not self.busy:
            raise ValueError("no round is under way")
        self.busy = False
        self.pinned = []
        job = self.job
        return job.failed_at, job.error, job.mark_error, job.sync_seconds

    def serve(self) -> None:
        """Does the rounds, on a thread of its own, until `stop`."""
        ql_serve(self.job, self.wake_fd, self.done_fd)  # type: ignore[name-defined]

    def stop(self) -> None:
        """Ends `serve`, behind the round that is under way."""
        self.job.stopping = True
        ql_wake(self.wake_fd)  # type: ignore[name-defined]

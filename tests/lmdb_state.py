"""A real state store for tests: an owner without a loop, and ways to hold writing up or to make it fail for real."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from engine.errors import EngineError
from engine.files.system import SystemFiles
from engine.state.store import Delete, LmdbState, Put


class Owner:
    """Stands for the event loop: `run()` calls what was posted until nothing is outstanding."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.call_soon_threadsafe = self.posted.put
        self.store: LmdbState

    def run(self) -> None:
        while self.store.pending_bytes:
            self.posted.get(timeout=30)()

    def submit(self, *ops: Put | Delete) -> EngineError | None:
        answers: list[EngineError | None] = []
        self.store.submit(ops, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]


@contextmanager
def opened(path: Path, *, create: bool = True, **settings: Any) -> Iterator[Owner]:
    owner = Owner()
    owner.store = LmdbState(path, owner.call_soon_threadsafe, SystemFiles(), create=create, **settings)
    try:
        yield owner
    finally:
        owner.store.close()


@contextmanager
def writing_held_up(owner: Owner) -> Iterator[None]:
    """The writer thread waits for LMDB's write lock meanwhile, with what it has gathered until now."""
    with owner.store._environment._environment.begin(write=True):
        yield


@contextmanager
def data_file_replaced(path: Path, by: str, flags: int, *, meta_only: bool = False) -> Iterator[None]:
    """The descriptor through which LMDB writes its data leads somewhere else, where writing fails for real.

    With `meta_only` just the one for the meta page: what goes before it is written and synced.
    """
    opened = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    numbers = [int(link.name) for link in opened if os.path.realpath(link) == str(path / "data.mdb")]
    if meta_only:  # LMDB opens the file a second time for it, with O_DSYNC
        numbers = [number for number in numbers if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DSYNC]
    assert numbers
    descriptors = {number: os.dup(number) for number in numbers}
    other = os.open(by, flags)
    for number in descriptors:
        os.dup2(other, number)
    os.close(other)
    try:
        yield
    finally:
        for number, copy in descriptors.items():
            os.dup2(copy, number)
            os.close(copy)

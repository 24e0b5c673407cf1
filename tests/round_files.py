"""Files that a commit round cannot write to, or not sync, whoever asks for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond that size (Python ignores the signal)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def not_to_be_synced() -> Iterator[int]:
    """A file that takes every write at every position, and whose sync fails."""
    fd = os.open("/dev/urandom", os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)

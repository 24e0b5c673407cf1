"""File systems of their own for tests (root): small ones that can be full, and images whose copy is a power cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDS_ROOT = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts file systems of its own"),
]


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


@contextmanager
def mounted(what: str | Path, where: Path, *options: str) -> Iterator[Path]:
    """A mounted file system for the time of the ``with`` block."""
    where.mkdir(parents=True, exist_ok=True)
    run("mount", *options, what, where)
    try:
        yield where
    finally:
        run("umount", where)


@contextmanager
def tmpfs(where: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory of that size."""
    with mounted("tmpfs", where, "-t", "tmpfs", "-o", f"size={size_bytes}") as mount:
        yield mount


def make_ext4(image: Path, size_bytes: int) -> None:
    """A file that holds an empty ext4 file system."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)


def fill(directory: Path, name: str = "filler") -> Path:
    """Takes all room that is left; the file to remove again."""
    path = directory / name
    with path.open("wb", buffering=0) as file:
        step = 1 << 20
        while step >= 512:
            try:
                file.write(bytes(step))
            except OSError:
                step //= 2
    return path


def memory_directory(fallback: Path) -> Path:
    """A directory in memory: copies of images are quick there."""
    root = Path("/dev/shm")
    if not root.is_dir() or shutil.disk_usage(root).free < 512 << 20:
        return fallback
    path = root / f"quintlog-{os.getpid()}-{fallback.name}"
    path.mkdir()
    return path

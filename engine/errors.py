"""Errors of the engine: ``str(error)`` tells the operator what happened and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Self


class EngineError(Exception):
    """Base of every error that the engine raises or hands to a callback."""

    def again(self) -> Self:
        """The same error for somebody else who asks. One that is raised remembers who raised it, and all that they
        hold: so an error that stays somewhere is not raised itself."""
        same = type(self).__new__(type(self), *self.args)
        same.__dict__.update(self.__dict__)
        return same


class NotStored(EngineError):
    """An append (or a change of ``state``) was not stored; the numbers given to it stay a gap.

    Attributes:
        reason: why, as a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReadOnly(NotStored):
    """Nothing more is written here until a restart, because the disk failed; reads go on."""


class DiskFull(NotStored):
    """No space left; writing goes on by itself as soon as there is room again."""


class TooLarge(EngineError):
    """A record or value is larger than its limit.

    Attributes:
        limit_bytes: the limit it breaks.
    """

    def __init__(self, message: str, limit_bytes: int) -> None:
        super().__init__(message)
        self.limit_bytes = limit_bytes


def too_large(size_bytes: int, limit_bytes: int, setting: str = "record_bytes_max") -> str:
    """What every protocol says of a value above its limit."""
    return f"value of {size_bytes} bytes; the limit is {limit_bytes}, setting {setting}"


class LimitReached(EngineError):
    """There are as many of something (topics, partitions) as the configuration allows."""


class OutOfRange(EngineError):
    """A sequence number below the start of the log (or beyond its end) was asked for.

    Attributes:
        first: the first number that is available.
        last: the last number that readers may see.
    """

    def __init__(self, message: str, first: int, last: int) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class UnknownTopic(EngineError):
    """No topic of this name, or one that is being deleted."""


class UnknownPartition(EngineError):
    """The topic has no partition of this index."""


class TopicExists(EngineError):
    """A topic of this name is there already."""


class InvalidConfig(EngineError):
    """A setting is unknown or its value is not valid; names the nearest key and the valid range."""


class Corrupt(EngineError):
    """Stored bytes are damaged.

    Attributes:
        path: file (or directory of an LMDB environment) that holds them.
        position: byte position in the file, or None where positions mean nothing (LMDB).
        reason: what is wrong, as a sentence.
        key: of the damaged value, in LMDB.
    """

    def __init__(self, path: str | Path, position: int | None, reason: str, key: bytes | None = None) -> None:
        where = path if position is None else f"{path} at byte {position}"
        super().__init__(f"{where}: {reason}")
        self.path = str(path)
        self.position = position
        self.reason = reason
        self.key = key


class LogLocked(EngineError):
    """Another process holds the data directory."""


class UnsupportedFormat(EngineError):
    """The data was written by a version that this one cannot read."""


class DataDirectoryError(EngineError):
    """The data directory, or a part of it, cannot be used as it is."""


def named(problem: Exception) -> str:
    """An error of Python's for a message: its kind and what it says, not, as its repr, all the bytes it is about."""
    return f"{type(problem).__name__}: {problem}"

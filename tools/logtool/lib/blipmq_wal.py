"""The write-ahead log of the original BlipMQ daemon, as a file to read.

::

    header   "BLIPWAL" and a zero byte | u32 version 1 | 20 zero bytes
    record   u64 id | u32 length | u32 CRC-32 of the payload | payload           integers little-endian
    payload  u8 QoS | u16 topic length, big-endian | topic (UTF-8) | body

Ids may skip and need not ascend strictly. The daemon appends after a torn record, and then cannot read its own file
any more; here the next whole record after the damage is looked for.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tools.logtool.lib.limits import WAL_RECORD_BYTES_MAX

MAGIC = b"BLIPWAL\0"
VERSION = 1
HEADER_BYTES = 32
_RECORD = struct.Struct("<QII")
_PAYLOAD = struct.Struct(">BH")
_BUFFER_BYTES = 4 << 20


class NotAWal(ValueError):
    """The file is no such log, or one of a later version."""


class WalRecord(NamedTuple):
    """A published message; ``position`` is where its record begins in the file."""

    id: int
    position: int
    qos: int
    topic: bytes
    body: bytes


class Damage(NamedTuple):
    """Bytes that are not a whole record."""

    position: int
    size_bytes: int
    is_tail: bool


def read_wal(file: BinaryIO) -> Iterator[WalRecord | Damage]:
    """The records of a log in the order of the file, with what is damaged between them.

    Raises:
        NotAWal, OSError
    """
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise NotAWal("not a write-ahead log of BlipMQ: it does not begin with BLIPWAL")
    version = int.from_bytes(header[8:12], "little")
    if version != VERSION:
        raise NotAWal(f"a write-ahead log of version {version}; version {VERSION} can be read")
    window = _Window(file)
    damage_from: int | None = None
    while True:
        window.need(_RECORD.size)
        record = window.record()
        if record is not None:
            if damage_from is not None:
                yield Damage(damage_from, record.position - damage_from, False)
                damage_from = None
            yield record
        elif not window.left:
            if damage_from is not None:
                yield Damage(damage_from, window.position - damage_from, True)
            return
        else:
            if damage_from is None:
                damage_from = window.position
            window.skip(1)


class _Window:
    """The part of the file that is looked at."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self._ended = False
        self.position = HEADER_BYTES

    @property
    def left(self) -> int:
        """Bytes from here to the end of what was read."""
        return len(self._data) - self._at

    def need(self, size: int) -> bool:
        """Read on until so many bytes are there; False: the file has no more."""
        if self.left < size and not self._ended:
            parts = [self._data[self._at :]]
            missing = size - self.left
            while missing > 0:
                part = self._file.read(max(missing, _BUFFER_BYTES))
                if not part:
                    self._ended = True
                    break
                parts.append(part)
                missing -= len(part)
            self._data, self._at = b"".join(parts), 0
        return self.left >= size

    def skip(self, size: int) -> None:
        """Go on by so many bytes."""
        self._at += size
        self.position += size

    def record(self) -> WalRecord | None:
        """The record here, and step over it; None: there is no whole record here."""
        if self.left < _RECORD.size:
            return None
        record_id, length, checksum = _RECORD.unpack_from(self._data, self._at)
        if not _PAYLOAD.size <= length <= WAL_RECORD_BYTES_MAX or not self.need(_RECORD.size + _PAYLOAD.size):
            return None
        start = self._at + _RECORD.size
        qos, topic_bytes = _PAYLOAD.unpack_from(self._data, start)
        if qos > 1 or not topic_bytes or _PAYLOAD.size + topic_bytes > length or not self.need(_RECORD.size + length):
            return None
        start = self._at + _RECORD.size
        payload = self._data[start : start + length]
        if zlib.crc32(payload) != checksum:
            return None
        topic = payload[_PAYLOAD.size : _PAYLOAD.size + topic_bytes]
        record = WalRecord(record_id, self.position, qos, topic, payload[_PAYLOAD.size + topic_bytes :])
        self.skip(_RECORD.size + length)
        return record

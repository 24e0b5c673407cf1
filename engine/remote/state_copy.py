"""A copy of the state: every key with its stored value, in compressed blocks, so that nobody needs it whole in memory.

Layout (little-endian)::

    header      64 bytes   magic 8s "QLSTATE" 00 | format version u32 | header bytes u32 (64) | lineage 16s | epoch u64
                           | version u64 | nonce u64 | hash u64 of the 56 bytes before
    block       24 bytes   compressed bytes u32 | bytes u32 | keys u32 | index u32, from 0
                           | hash u64 of the 16 bytes before and the compressed bytes
                then       Zstandard of keys and values, in the form of a piece's changes (`engine.remote.piece`)

Hashes are xxh3-64. Keys rise, through all blocks. The last block has 0 bytes and 0 keys: a copy that was cut short has
none. A copy is made while the state is in use, a few thousand keys at a time: only together with the changes that come
after it (those of pieces with a higher version) is it the state of one moment, that of the head that names both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import xxhash
from cramjam import DecompressionError, zstd

from engine.errors import Corrupt, UnsupportedFormat
from engine.remote.limits import EPOCH_MAX, NUMBER_MAX, STATE_BLOCK_BYTES, STATE_BLOCK_BYTES_MAX
from engine.remote.names import STATE, Versioned
from engine.remote.piece import Change, packed_changes, parse_changes

MAGIC = b"QLSTATE\0"
FORMAT_VERSION = 1
HEADER_BYTES = 64
BLOCK_HEADER_BYTES = 24

_HEADER = struct.Struct("<8sII16sQQQ")
_BLOCK = struct.Struct("<IIII")
_HASH = struct.Struct("<Q")
_COMPRESSED_BYTES_MAX = STATE_BLOCK_BYTES_MAX + (STATE_BLOCK_BYTES_MAX >> 7) + 1024  # of what does not compress
_LEVEL = 3


def pack_state(lineage: str, name: Versioned, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The object's content in parts. `entries` are keys with what is stored under them, in the order of the keys."""
    header = _HEADER.pack(
        MAGIC, FORMAT_VERSION, HEADER_BYTES, bytes.fromhex(lineage), name.epoch, name.version, name.nonce
    )
    yield header + _hashed(header)
    parts: list[bytes] = []
    size = keys = index = 0
    for key, value in entries:
        packed = b"".join(packed_changes((Change(key, value),)))
        parts.append(packed)
        size, keys = size + len(packed), keys + 1
        if size >= STATE_BLOCK_BYTES:
            yield _packed_block(b"".join(parts), keys, index)
            parts, size, keys, index = [], 0, 0, index + 1
    if parts:
        yield _packed_block(b"".join(parts), keys, index)
        index += 1
    yield _packed_block(b"", 0, index)


class StateUnpacker:
    """The reverse of `pack_state`, fed with any parts of the object in their order.

    Raises (its methods): Corrupt, UnsupportedFormat.
    """

    def __init__(self, name: str, lineage: str) -> None:
        self._name = name
        self._lineage = lineage
        self._left = bytearray()
        self._at = 0
        self._index = 0
        self._last_key = b""
        self._has_ended = False

    def feed(self, content: bytes | memoryview) -> Iterator[list[Change]]:
        """The keys of every block that is whole with this part."""
        self._left += content
        if not self._at:
            if len(self._left) < HEADER_BYTES:
                return
            self._check_header(bytes(self._left[:HEADER_BYTES]))
            self._forget(HEADER_BYTES)
        while (size := self._block_bytes()) and len(self._left) >= size:
            block = bytes(self._left[:size])
            found = self._block(block)
            self._forget(size)
            if found:
                yield found

    def end(self) -> None:
        """To be called after the last part."""
        if not self._has_ended or self._left:
            raise Corrupt(self._name, self._at, "the copy of the state is cut short, or has more than its blocks")

    def _forget(self, size: int) -> None:
        del self._left[:size]
        self._at += size

    def _check_header(self, header: bytes) -> None:
        magic, version, header_bytes, lineage, *numbers = _HEADER.unpack_from(header)
        if magic != MAGIC:
            raise Corrupt(self._name, 0, "not a copy of the state (wrong magic)")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{self._name}: format {version} of copies of the state; this version reads format {FORMAT_VERSION}"
            )
        epoch, number, nonce = numbers
        whole = header_bytes == HEADER_BYTES and header[_HEADER.size :] == _hashed(header[: _HEADER.size])
        if not whole or epoch > EPOCH_MAX or number > NUMBER_MAX:
            raise Corrupt(self._name, 0, "the header of the copy of the state is damaged (checksum)")
        found = str(Versioned(STATE, epoch, number, nonce))
        if found != self._name or lineage.hex() != self._lineage:
            raise Corrupt(self._name, 0, f"this is {found} of the lineage {lineage.hex()}")

    def _block_bytes(self) -> int:
        """How many bytes the next block has; 0: that is not known yet."""
        if self._has_ended and self._left:
            raise Corrupt(self._name, self._at, "the copy of the state has more than its blocks")
        if len(self._left) < BLOCK_HEADER_BYTES:
            return 0
        compressed, size, keys, _ = _BLOCK.unpack_from(self._left)
        if compressed > _COMPRESSED_BYTES_MAX or size > STATE_BLOCK_BYTES_MAX or keys > size:
            raise Corrupt(self._name, self._at, "a block of the copy of the state has an impossible size")
        return BLOCK_HEADER_BYTES + int(compressed)

    def _block(self, block: bytes) -> list[Change]:
        _, size, keys, index = _BLOCK.unpack_from(block)
        body = block[BLOCK_HEADER_BYTES:]
        if index != self._index or _hashed(block[: _BLOCK.size] + body) != block[_BLOCK.size : BLOCK_HEADER_BYTES]:
            raise Corrupt(self._name, self._at, "a block of the copy of the state is damaged (checksum)")
        self._index += 1
        if not keys:
            self._has_ended = True
            return []
        content = bytearray(size)
        try:
            whole = zstd.decompress_into(body, content) == size
        except DecompressionError:
            whole = False
        if not whole:
            raise Corrupt(self._name, self._at, "a block of the copy of the state cannot be unpacked")
        found = list(parse_changes(content, 0, size, self._name))
        rising = [self._last_key, *(change.key for change in found)]
        if len(found) != keys or any(change.value is None for change in found) or rising != sorted(set(rising)):
            raise Corrupt(self._name, self._at, "the keys of a block are not those that it should have")
        self._last_key = rising[-1]
        return found


def _packed_block(content: bytes, keys: int, index: int) -> bytes:
    body = bytes(zstd.compress(content, _LEVEL)) if keys else b""
    header = _BLOCK.pack(len(body), len(content), keys, index)
    return header + _hashed(header + body) + body


def _hashed(content: bytes) -> bytes:
    return _HASH.pack(xxhash.xxh3_64_intdigest(content))

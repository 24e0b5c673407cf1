"""Unpacking: bounds before memory is taken, and every damage is the peer's error."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import cramjam
import pytest

from netserver.kafka.compression import unpacked
from netserver.kafka.limits import UNPACKED_BYTES_MAX
from netserver.kafka.record_errors import INVALID_RECORD, TOO_LARGE, UNKNOWN_CODEC, RecordsError
from tests.kafka_batches import LZ4, PACKERS, SNAPPY, ZSTD, xerial

ZEROS = 80 << 20
BOMBS = {
    "gzip": lambda: gzip.compress(bytes(ZEROS), 1),
    "gzip members": lambda: gzip.compress(bytes(1 << 20)) * (ZEROS >> 20),
    "lz4": lambda: bytes(cramjam.lz4.compress(bytes(ZEROS))),
    "zstd": lambda: bytes(cramjam.zstd.compress(bytes(ZEROS))),
    "snappy": lambda: bytes(cramjam.snappy.compress_raw(bytes(ZEROS))),
    "xerial": lambda: xerial(bytes(1 << 20), 1 << 20)[:16] + xerial(bytes(1 << 20), 1 << 20)[16:] * (ZEROS >> 20),
}


def code(codec: int, data: bytes, bytes_max: int = UNPACKED_BYTES_MAX) -> int:
    try:
        unpacked(codec, memoryview(data), bytes_max)
    except RecordsError as error:
        return error.code
    return 0


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("size", [0, 10, 16 << 10, 300_000])
def test_sizes(how: str, size: int) -> None:
    codec, compress = PACKERS[how]
    for data in (b"many times the same, " * (size // 21), random.Random(size).randbytes(size)):
        assert bytes(unpacked(codec, memoryview(compress(data)))) == data
        assert bytes(unpacked(codec, memoryview(compress(data)), len(data))) == data
        if data:
            assert code(codec, compress(data), len(data) - 1) == TOO_LARGE


@pytest.mark.parametrize("how", BOMBS)
def test_a_small_batch_takes_no_more_memory_than_the_bound(how: str) -> None:
    bomb = BOMBS[how]()
    assert len(bomb) < 8 << 20
    tracemalloc.start()
    try:
        assert code(PACKERS[how][0], bomb, 4 << 20) == TOO_LARGE
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20  # not the bomb: the room for it is at most eight times what came
    assert code(PACKERS[how][0], bomb) == TOO_LARGE


@pytest.mark.parametrize("how", PACKERS)
def test_damage(how: str) -> None:
    codec, compress = PACKERS[how]
    data = compress(random.Random(3).randbytes(100) * 3)
    for size in range(1, len(data)):
        assert code(codec, data[:size]) in (0, INVALID_RECORD)
    rng = random.Random(5)
    for _ in range(500):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        assert code(codec, bytes(changed)) in (0, INVALID_RECORD, TOO_LARGE)
    for size in range(40):
        assert code(codec, rng.randbytes(size)) in (0, INVALID_RECORD, TOO_LARGE)


def test_what_is_stated_is_not_believed() -> None:
    assert code(SNAPPY, b"\xff\xff\xff\x1f" + bytes(10)) == INVALID_RECORD  # 64 MiB in 10 bytes
    assert code(SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(10)) == TOO_LARGE
    assert code(SNAPPY, xerial(b"data")[:-1]) == INVALID_RECORD
    assert code(SNAPPY, xerial(b"data") + b"\x7f\xff\xff\xff") == INVALID_RECORD
    assert [code(codec, b"data") for codec in (LZ4, ZSTD, 5, 6, 7)] == [INVALID_RECORD] * 2 + [UNKNOWN_CODEC] * 3

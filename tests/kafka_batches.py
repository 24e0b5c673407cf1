"""Kafka's batches of records made and read by another project (aiokafka), for tests."""

from __future__ import annotations

import gzip
import importlib.util
import struct
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import cramjam
import pytest

from netserver.kafka import records

DefaultRecordBatchBuilder = pytest.importorskip("aiokafka.record.default_records").DefaultRecordBatchBuilder
MemoryRecords = pytest.importorskip("aiokafka.record.memory_records").MemoryRecords
TIME = 1_700_000_000_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


class Message(NamedTuple):
    """What a client sends, or gets."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = TIME
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def _as_source() -> ModuleType:
    """The module ``records`` as plain Python, also where it is compiled."""
    path = Path(str(records.__file__)).parent / "records.py"
    spec = importlib.util.spec_from_file_location("netserver.kafka.records_as_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = _as_source()
both = pytest.mark.parametrize("module", [records, SOURCE], ids=["compiled", "pure"])


def batch(
    messages: Sequence[Message], *, producer: tuple[int, int, int] = (-1, -1, -1), transactional: bool = False
) -> bytes:
    """One uncompressed batch."""
    builder = DefaultRecordBatchBuilder(2, 0, transactional, *producer, batch_size=1 << 30)
    for index, message in enumerate(messages):
        headers = [(name.decode(), value) for name, value in message.headers]
        assert builder.append(index, message.timestamp_ms, message.key, message.value, headers) is not None
    return bytes(builder.build())


def read(data: bytes) -> list[tuple[int, Message]]:
    """The offsets and messages of all batches, back to back."""
    found = []
    batches = MemoryRecords(data)
    while (got := batches.next_batch()) is not None:
        assert got.validate_crc()
        for record in got:
            headers = tuple((name.encode(), value) for name, value in record.headers)
            found.append((record.offset, Message(record.value, record.key, record.timestamp, headers)))
    return found


def resealed(data: bytes, **fields: int) -> bytes:
    """The batch with other fields of its header, its size and checksum made right again."""
    out = bytearray(data)
    formats = {
        "offset": (0, ">q"), "magic": (16, ">b"), "attributes": (21, ">h"), "last": (23, ">i"), "base_ms": (27, ">q"),
        "producer_id": (43, ">q"), "epoch": (51, ">h"), "sequence": (53, ">i"), "count": (57, ">i"),
    }  # fmt: skip
    for name, value in fields.items():
        at, code = formats[name]
        struct.pack_into(code, out, at, value)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, records.crc32c(out, 21, len(out)))
    return bytes(out)


def xerial(data: bytes, block_bytes: int = 32768) -> bytes:
    """snappy in the framing of snappy-java."""
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01" + b"".join(struct.pack(">i", len(block)) + block for block in packed)


PACKERS = {
    "gzip": (GZIP, gzip.compress),
    "gzip members": (GZIP, lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
    "snappy": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (SNAPPY, xerial),
    "xerial blocks": (SNAPPY, lambda data: xerial(data, 10)),
    "lz4": (LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
    "zstd frames": (ZSTD, lambda data: b"".join(bytes(cramjam.zstd.compress(part)) for part in (data[:9], data[9:]))),
}


def packed(data: bytes, how: str) -> bytes:
    """The batch with its records compressed."""
    codec, compress = PACKERS[how]
    attributes = int.from_bytes(data[21:23], "big") & ~7 | codec
    return resealed(data[:61] + compress(data[61:]), attributes=attributes)

"""Making and looking at batches, for the tests of both builds."""

from __future__ import annotations

from types import ModuleType

import pytest

from engine.formats import batch, batch_pure
from engine.formats.bundle import check_bundle

TIME = 1_700_000_000_000
SEGMENT = 0xFEDC_BA98_7654_3210

both = pytest.mark.parametrize("codec", [batch, batch_pure], ids=["compiled", "pure"])


def writer(codec: ModuleType, size: int = 1 << 20, next_seq: int = 1) -> batch.BatchWriter:
    made: batch.BatchWriter = codec.BatchWriter(bytearray(b"\xee" * size), next_seq)
    made.begin(TIME)
    return made


def sealed(codec: ModuleType, made: batch.BatchWriter, file_position: int = 0) -> bytearray:
    made.close_batch()
    codec.seal(made.buffer, 0, made.position, SEGMENT, file_position, 0)
    return made.buffer[: made.position]


def put_bundle(made: batch.BatchWriter, data: bytes, first_seq: int = 0) -> bool:
    info = check_bundle(data, 0, len(data))
    first = info.first_seq if info.sparse else first_seq or made.next_seq
    last = info.last_seq if info.sparse else first + info.count - 1
    return made.put_bundle(data, 0, len(data), info.count, first, last, info.max_timestamp_ms, info.sparse)


def headers_of(codec: ModuleType, data: bytearray, file_position: int = 0) -> list[batch.BatchHeader]:
    found = []
    position = 0
    while position < len(data):
        header = codec.read_header(data, position, SEGMENT, file_position + position)
        assert header is not None
        assert codec.check_body(data, position, header, SEGMENT)
        found.append(header)
        position = header.end
    return found

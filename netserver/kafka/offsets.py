"""ListOffsets: the ends of logs, and records by their time.

A record's offset is its number in the log, which begins with 1. The first record of at least some time is looked for
from the last entry of the index of times that is older; the one with the highest time of all behind the last entry,
and once more behind the entry that is older than what was found there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from netserver.access.table import right_of

from .encoding import first_at_time, latest_in
from .errors import Code
from .limits import SCAN_BYTES
from .schema import Values
from .waiting import opened

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import ReadBatch

    from .call import Call

SUBSCRIBE: Final = right_of("kafka", "LIST_OFFSETS")
END: Final = -1
START: Final = -2
HIGHEST: Final = -3
"""Stand for a time; the last one from version 7 on."""
HIGHEST_SINCE: Final = 7
LAST_MS: Final = (1 << 63) - 1


async def list_offsets(call: Call) -> Values:
    """See the module."""
    topics: dict[str, list[Values]] = {}
    async for name, item in call.each(call.partitions()):
        topics.setdefault(name, []).append({"index": item["index"], **await _found(call, name, item)})
    return {"topics": await call.encoded_by_topic(topics.items())}


async def _found(call: Call, name: str, item: Values) -> Values:
    """The answer for one partition."""
    wanted = item["timestamp_ms"]
    if wanted < HIGHEST or (wanted == HIGHEST and call.request.head.version < HIGHEST_SINCE):
        return {"error": Code.UNSUPPORTED_VERSION}
    if not call.visitor.check("LIST_OFFSETS", SUBSCRIBE, name.encode()):
        return {"error": Code.TOPIC_FORBIDDEN}
    try:
        partition = call.shared.partition(name, item["index"])
        if partition is None:
            return {"error": Code.UNKNOWN_TOPIC}
        await opened(partition)
        if wanted == END:
            return {"error": Code.NONE, "offset": partition.committed_seq + 1}
        if wanted == START:
            return {"error": Code.NONE, "offset": partition.log_start}
        found = await (_highest(call, partition) if wanted == HIGHEST else _first(call, partition, wanted))
    except EngineError:
        return {"error": Code.STORAGE}
    if found is None:
        return {"error": Code.NONE}
    return {"error": Code.NONE, "offset": found[0], "timestamp_ms": found[1]}


async def _first(call: Call, partition: Partition, timestamp_ms: int) -> tuple[int, int] | None:
    """Number and time of the first record of at least a time."""
    seq, end = partition.seq_at_time(timestamp_ms), partition.committed_seq
    while seq <= end:
        read_batch = await _read(call, partition, seq)
        found = first_at_time(read_batch, seq, timestamp_ms)
        if found is not None:
            return found
        seq = read_batch.last_seq + 1
    return None


async def _highest(call: Call, partition: Partition) -> tuple[int, int] | None:
    """Number and time of the record with the highest time."""
    behind = partition.seq_at_time(LAST_MS)
    best = await _highest_from(call, partition, behind)
    if best is None or (start := partition.seq_at_time(best[1])) == behind:
        return best
    return await _highest_from(call, partition, start)


async def _highest_from(call: Call, partition: Partition, seq: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    end = partition.committed_seq
    while seq <= end:
        read_batch = await _read(call, partition, seq)
        found = latest_in(read_batch, seq)
        if found is not None and (best is None or found[1] > best[1]):
            best = found
        seq = read_batch.last_seq + 1
    return best


async def _read(call: Call, partition: Partition, seq: int) -> ReadBatch:
    """Batches from a committed number on, with others having their turns before. Raises EngineError."""
    await call.turn()
    while True:
        ready = asyncio.Event()
        read_batch = partition.read(max(seq, partition.log_start), SCAN_BYTES, ready.set)
        if read_batch is not None:
            return read_batch
        await ready.wait()

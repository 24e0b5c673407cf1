"""What a Consume answer means to the client: records, positions, errors."""

from __future__ import annotations

from typing import Final

from netserver.errors import Refused

from .dispatch import unpack_chunk
from .messages import SEQ_END, ConsumeCode, ConsumedPartition, ConsumeResponse
from .records import Fetched, RecordBatch

Entries = list[tuple[bytes, int, int, int]]
"""(topic, partition, number asked for, fetch size)."""

_TEXTS: Final = {
    ConsumeCode.UNKNOWN_PARTITION: "no such partition",
    ConsumeCode.SYSTEM_ERROR: "the server cannot read it",
    ConsumeCode.NO_LEADER: "the partition has no leader",
    ConsumeCode.OTHER_LEADER: "another node leads this partition",
}


def fetched(response: ConsumeResponse, entries: Entries) -> list[Fetched]:
    """The answer to a request for ``entries``, partition by partition.

    Raises:
        Refused: a topic or partition is unknown or cannot be read.
        ValueError: a bundle is not valid.
    """
    asked = {(topic, partition): seq for topic, partition, seq, _ in entries}
    found = []
    for topic in response.topics:
        name = topic.name.decode("utf-8", "backslashreplace")
        if topic.unknown:
            raise Refused("unknown_topic", f"no topic {name!r}")
        for partition in topic.partitions:
            seq = asked.get((topic.name, partition.partition_id))
            if seq is not None:
                found.append(_fetched(topic.name, partition, seq, name))
    return found


def _fetched(topic: bytes, partition: ConsumedPartition, asked: int, name: str) -> Fetched:
    index, mark = partition.partition_id, partition.high_water_mark
    if partition.code == ConsumeCode.OUT_OF_RANGE:
        first_seq = partition.first_available
        return Fetched(topic, index, None, first_seq if asked < first_seq else mark + 1, mark, first_seq)
    if partition.code not in (ConsumeCode.OK, ConsumeCode.SPARSE_FIRST):
        text = _TEXTS.get(ConsumeCode(partition.code), "refused")
        if partition.leader is not None:
            text += f": {partition.leader.host}:{partition.leader.port}"
        retryable = partition.code != ConsumeCode.UNKNOWN_PARTITION
        raise Refused(partition.code, f"topic {name!r} partition {index}: {text}", retryable=retryable)
    wanted = 0 if asked == SEQ_END else asked
    if not partition.chunk:
        return Fetched(topic, index, None, wanted or mark + 1, mark)
    chunk = bytes(partition.chunk)
    values, keys, timestamps_ms, seqs, next_seq, used = unpack_chunk(chunk, partition.base_seq or 0, wanted)
    if not used:
        return Fetched(topic, index, None, wanted, mark, is_cut=True)
    batch = RecordBatch(topic, index, seqs, timestamps_ms, keys, values, mark) if seqs else None
    return Fetched(topic, index, batch, max(wanted, next_seq), mark)

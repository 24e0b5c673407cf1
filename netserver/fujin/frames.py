# cython: annotation_typing=False
"""Hot loops of Fujin: runs of WRITE into the log, stored records into MSG and FETCH, ids of ACK; both sides.

Compiled; the twin is ``frames_pure``, ``dispatch`` chooses. The layouts are those of ``codec``. Each loop takes what is
whole and of the usual form, and stops before the first thing that is not: whoever calls looks at that with ``codec``,
which knows what is wrong with it.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import BatchWriter, RecordCursor

Buffer: TypeAlias = bytes | bytearray | memoryview
Target: TypeAlias = bytearray | memoryview

COMPILED = not __file__.endswith(".py")

# C variables of the compiled module
_WRITE = 3
_MSG = 6
_FIXED = 13  # of a WRITE: opcode, cid, two lengths
_ANSWER = 6  # of a WRITE that is stored: opcode, cid, 00
_ID = 12  # partition and sequence number
_ID_STRING = 16  # and its length
_SEQ_BOUND = 1 << 62  # no sequence number is as high

PENDING = 0  # what frame_records() ended with: the current record is not taken
END = 1  # no record is left in the batches
SKIP = 2  # the current record cannot be delivered: empty, or too large
FULL = 3  # the current record does not fit into what is left of the output


def pack_writes(
    src: Buffer, position: int, end: int, topic: bytes, writer: BatchWriter, message_bytes_max: int, answers: Target
) -> tuple[int, int, bool]:
    """Put the messages of consecutive whole WRITEs to ``topic`` into ``writer``.

    It stops before a command that is cut off, another one, to another topic, with a message that is empty or above the
    limit, or for which the writer has no room.

    Args:
        answers: the answers of those that are taken go here, 6 bytes each; its size bounds the run.

    Returns:
        (position after the last WRITE taken, how many, whether it stopped because the writer had no room).
    """
    count = 0
    count_max = len(answers) // _ANSWER
    name = topic
    topic_bytes = len(topic)
    head = _FIXED + topic_bytes
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while count < count_max and end - position >= head and src[position] == _WRITE:
        if not same(src, position + 5, name):
            break
        size = u32(src, position + 9 + topic_bytes)
        if size == 0 or size > message_bytes_max or size > end - position - head:
            break
        if not writer.put(src, position + head, position + head + size):
            return position, count, True
        at = _ANSWER * count
        answers[at] = 2
        copy(answers, at + 1, src, position + 1, 4)
        answers[at + 5] = 0
        count += 1
        position += head + size
    return position, count, False


def frame_records(
    out: Target,
    position: int,
    records: RecordCursor,
    last_seq: int,
    limit: int,
    partition: int,
    is_push: bool,
    has_id: bool,
    message_bytes_max: int,
) -> tuple[int, int, int]:
    """Write the current record and those that follow it without a gap, as MSGs or as entries of a FETCH answer.

    Args:
        out, position: where they go.
        records: its current record is the first one.
        last_seq: no record above it is taken.
        limit: most records.
        partition: for the ids.
        is_push: each begins with the byte of MSG.
        has_id: each has its id.
        message_bytes_max: larger records are not delivered.

    Returns:
        (position after the last one, how many, why it ended).
    """
    count = 0
    expected = records.seq
    out_bytes = len(out)
    head = 4
    if is_push:
        head += 1
    if has_id:
        head += _ID_STRING
    if position < 0:
        raise ValueError("position outside the output")
    while True:
        seq = records.seq
        if count == limit or seq > last_seq or seq != expected:
            return position, count, PENDING
        size = records.value_end - records.value_start
        if size == 0 or size > message_bytes_max:
            return position, count, SKIP
        if head + size > out_bytes - position:
            return position, count, FULL
        if is_push:
            out[position] = _MSG
            position += 1
        if has_id:
            put_big(out, position, _ID, 4)
            put_big(out, position + 4, partition, 4)
            put_big(out, position + 8, seq, 8)
            position += _ID_STRING
        put_big(out, position, size, 4)
        position = copy(out, position + 4, records.data, records.value_start, size)
        count += 1
        expected = seq + 1
        if not records.next():
            return position, count, END


def id_ranges(src: Buffer, position: int, count: int, partition: int) -> tuple[int, list[int]]:
    """The sequence numbers in a run of message ids (str each, as in ACK), up to the first one that is none of ours.

    Returns:
        (how many ids, their numbers as ranges: first, last, first, last ... in order).
    """
    ranges: list[int] = []
    first = 0
    last = 0
    taken = 0
    if position < 0:
        raise ValueError("position outside the source")
    while taken < count and len(src) - position >= _ID_STRING:
        if u32(src, position) != _ID or u32(src, position + 4) != partition:
            break
        seq = u64_at(src, position + 8)
        if seq == 0 or seq >= _SEQ_BOUND:
            break
        if taken and seq == last + 1:
            last = seq
        else:
            if taken:
                ranges.append(first)
                ranges.append(last)
            first = seq
            last = seq
        taken += 1
        position += _ID_STRING
    if taken:
        ranges.append(first)
        ranges.append(last)
    return taken, ranges


def ok_results(src: Buffer, position: int, count: int) -> bytearray:
    """The results "no error" of ``count`` ids of ours (see ``id_ranges``)."""
    if position < 0 or count < 0 or count * _ID_STRING > len(src) - position:
        raise ValueError("range outside the source")
    buffer = bytearray(count * (_ID_STRING + 1))
    out = buffer
    for index in range(count):
        copy(out, index * (_ID_STRING + 1), src, position + index * _ID_STRING, _ID_STRING)
    return buffer


def pack_values(topic: bytes, cid: int, values: list[bytes], start: int, end: int, has_headers: bool) -> bytearray:
    """WRITEs of ``values[start:end]``, back to back, with correlation ids from ``cid`` on (they wrap at 2^32).

    Args:
        has_headers: the server expects a headers field; it is empty.
    """
    name = topic
    topic_bytes = len(topic)
    head = _FIXED + topic_bytes
    if has_headers:
        head += 2
    total = 0
    for index in range(start, end):
        value = values[index]
        total += head + len(value)
    buffer = bytearray(total)
    out = buffer
    position = 0
    for index in range(start, end):
        value = values[index]
        size = len(value)
        out[position] = _WRITE
        put_big(out, position + 1, cid & 0xFFFFFFFF, 4)
        put_big(out, position + 5, topic_bytes, 4)
        copy(out, position + 9, name, 0, topic_bytes)
        put_big(out, position + head - 4, size, 4)
        position = put_bytes(out, position + head, value, size)
        cid += 1
    return buffer


def take_written(src: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """A run of answers to WRITE without an error and with correlation ids that follow each other (modulo 2^32).

    Returns:
        (position after it, the first correlation id, how many).
    """
    first = 0
    count = 0
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while end - position >= _ANSWER and src[position] == 2 and src[position + 5] == 0:
        cid = u32(src, position + 1)
        if count == 0:
            first = cid
        elif cid != (first + count) & 0xFFFFFFFF:
            break
        count += 1
        position += _ANSWER
    return position, first, count


def take_messages(
    src: bytes, position: int, end: int, limit: int, is_push: bool, has_id: bool, ids: list[bytes], values: list[bytes]
) -> tuple[int, int]:
    """A run of whole MSGs, or of entries of a FETCH answer; ids and values are appended to the lists.

    Returns:
        (position after it, how many).
    """
    count = 0
    view = src
    text = src
    if position < 0 or end > len(src):
        raise ValueError("range outside the source")
    while count < limit:
        at = position
        id_at = at
        id_bytes = 0
        if is_push:
            if at >= end or view[at] != _MSG:
                break
            at += 1
        if has_id:
            if end - at < 4:
                break
            id_bytes = u32(view, at)
            id_at = at + 4
            if id_bytes > end - id_at:
                break
            at = id_at + id_bytes
        if end - at < 4:
            break
        size = u32(view, at)
        at += 4
        if size > end - at:
            break
        if has_id:
            ids.append(text[id_at : id_at + id_bytes])
        values.append(text[at : at + size])
        position = at + size
        count += 1
    return position, count


def u32(src: Buffer, position: int) -> int:
    """The big-endian u32 there."""
    high = src[position] << 8
    high |= src[position + 1]
    low = src[position + 2] << 8
    low |= src[position + 3]
    return high << 16 | low


def u64_at(src: Buffer, position: int) -> int:
    """The big-endian u64 there."""
    high = u32(src, position)
    low = u32(src, position + 4)
    return high << 32 | low


def put_big(out: Target, position: int, value: int, size: int) -> None:
    """Write a big-endian number of ``size`` bytes."""
    for index in range(size):
        out[position + index] = value >> 8 * (size - 1 - index) & 0xFF


def copy(out: Target, position: int, src: Buffer, start: int, size: int) -> int:
    """Copy ``src[start : start + size]`` to ``out[position:]``; the position after it."""
    for index in range(size):
        out[position + index] = src[start + index]
    return position + size


def put_bytes(out: Target, position: int, text: bytes, size: int) -> int:
    """Copy the first ``size`` bytes of ``text``; the position after them."""
    for index in range(size):
        out[position + index] = text[index]
    return position + size


def same(src: Buffer, position: int, name: Buffer) -> bool:
    """Whether the str at ``position`` is ``name``; the caller has checked that so many bytes are there."""
    size = len(name)
    if u32(src, position) != size:
        return False
    for index in range(size):  # noqa: SIM110 (a generator would be a Python object)
        if src[position + 4 + index] != name[index]:
            return False
    return True

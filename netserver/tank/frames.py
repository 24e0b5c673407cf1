# cython: annotation_typing=False
"""Hot loops of TANK: Produce frames into the log, stored batches into chunks (compiled; the twin is frames_pure).

Both look only at what they need: a bundle's messages are checked by ``engine.formats.bundle.check_bundle``, and never
touched again. The layouts are those of ``requests.py``, ``engine.formats.bundle`` and ``engine.formats.batch``.
"""

from __future__ import annotations

from typing import TypeAlias

from engine.formats.batch import BatchWriter
from engine.formats.bundle import BundleInfo, MessageCursor, check_bundle
from engine.formats.record import BatchError, BundleError

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_ANSWER = 9  # frame header, request id; then a code for each bundle
_PART_LEAST = 4  # partition id, length, a bundle's first byte
_PARTS_MAX = 255
_RUN_BYTES = 2 << 20  # of a bundle, packed and unpacked; what is larger is checked on a thread
_RUN_RECORDS = 1 << 17  # of a bundle, of those of a frame, and in one call
_PARTS_BYTES_MAX = 1 << 20  # of a request of several bundles; a larger one is prepared on its own
_PART_ROOM = 92  # a bundle's batch header and length varint
_CHECK_HEAD = 26  # frame header, version, request id, client id, acks, time-out, topics, name, partitions, id, length
_BATCH_HEADER = 88


class ProduceCursor:
    """Reads a Produce frame of the usual shape: one topic, its bundles one after the other.

    After ``open()`` has returned True: ``src[name_start:name_end]`` is the topic, ``parts`` the number of bundles,
    ``src[bundle_start:bundle_end]`` the first one, for ``partition_id``, ``frame_end`` the position after the frame.
    ``advance()`` goes on to the next bundle.
    """

    def __init__(self) -> None:
        self.name_start = 0
        self.name_end = 0
        self.parts = 0
        self.partition_id = 0
        self.request_id = 0
        self.bundle_start = 0
        self.bundle_end = 0
        self.frame_end = 0

    def open(self, src: Buffer, position: int, end: int) -> bool:
        """Whether ``src[position:end]`` begins with a whole frame of that shape.

        False says nothing else about it: it may be cut off, malformed, or some other valid frame.
        """
        if position < 0 or end > len(src) or end - position < _CHECK_HEAD or src[position] != 1:
            return False
        size = u32(src, position + 1)
        if size > end - position - 5:
            return False
        stop = position + 5 + size
        self.frame_end = stop
        self.request_id = u32(src, position + 7)
        at = position + 12 + src[position + 11]  # after the client id
        if stop - at < 7 or src[at + 5] != 1:
            return False
        self.name_start = at + 7
        at = self.name_end = at + 7 + src[at + 6]
        if at >= stop or src[at] == 0:
            return False
        self.parts = src[at]
        self.bundle_end = at + 1
        return self.advance(src)

    def advance(self, src: Buffer) -> bool:
        """Goes on to the next bundle of the frame; False: it is cut off by the frame's end."""
        stop = self.frame_end
        at = self.bundle_end
        if stop > len(src) or stop - at < 3:
            return False
        self.partition_id = src[at] | src[at + 1] << 8
        at += 2
        value = 0
        shift = 0
        while True:
            if at >= stop or shift > 28:
                return False
            byte = src[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if value > stop - at:
            return False
        self.bundle_start = at
        self.bundle_end = at + value
        return True


def produce_run(
    src: Buffer, position: int, end: int, name: bytes, partition_id: int, writer: BatchWriter
) -> tuple[int, bool, int, int, int, bytearray]:
    """Appends the bundles of consecutive Produce frames that are all for one partition.

    It stops when it has taken very many records, before the first frame that is cut off, not of the usual shape, has a
    bundle for another partition, one that brings its own numbers, is large or not valid, and before one that the writer
    has no room for. Bundles get the writer's next numbers.

    Returns:
        (position after the last frame taken; whether it stopped for lack of room; bundles; records; bytes of the
        bundles; the frames' answers, all codes 0).
    """
    cursor = ProduceCursor()
    capacity = 0
    at = position
    while end - at >= 5 and src[at] == 1:
        size = u32(src, at + 1)
        if size > end - at - 5:
            break
        at += 5 + size
        size = size // _PART_LEAST
        capacity += _ANSWER + (size if size < _PARTS_MAX else _PARTS_MAX)
    answers = bytearray(capacity)
    out = answers
    answered = 0
    bundles = 0
    records = 0
    size_bytes = 0
    full = False
    while records < _RUN_RECORDS and cursor.open(src, position, end):
        if cursor.partition_id != partition_id or not same(src, cursor.name_start, cursor.name_end, name):
            break
        infos = check_parts(src, cursor)
        if infos is None:
            break
        parts = cursor.parts
        if parts > 1 and writer.size - writer.position < parts_room(cursor):
            full = True
            break
        cursor.open(src, position, end)
        for index in range(parts):
            info = infos[index]
            start = cursor.bundle_start
            stop = cursor.bundle_end
            count = info.count
            first_seq = writer.next_seq
            if not writer.put_bundle(
                src, start, stop, count, first_seq, first_seq + count - 1, info.max_timestamp_ms, False
            ):
                full = True
                break
            records += count
            size_bytes += stop - start
            if index + 1 < parts:
                cursor.advance(src)
        if full:
            break  # one bundle: of several all have room
        put_answer(out, answered, cursor.request_id, parts)
        answered += _ANSWER + parts
        bundles += parts
        position = cursor.frame_end
    return position, full, bundles, records, size_bytes, answers[:answered]


def check_parts(src: Buffer, cursor: ProduceCursor) -> list[BundleInfo] | None:
    """What is in the bundles of the frame that was just opened; None: it is for the general way.

    Whoever reads frames one by one meets what is not valid again, and says so.
    """
    partition_id = cursor.partition_id
    parts = cursor.parts
    if parts > 1 and cursor.frame_end - cursor.bundle_start > _PARTS_BYTES_MAX:
        return None
    infos = []
    left = _RUN_RECORDS
    while True:
        start = cursor.bundle_start
        stop = cursor.bundle_end
        if start == stop or stop - start > _RUN_BYTES or src[start] & 0x40 or cursor.partition_id != partition_id:
            return None
        try:
            info = check_bundle(src, start, stop, _RUN_BYTES, left)
        except BundleError:
            return None
        left -= info.count
        infos.append(info)
        if len(infos) == parts:
            return infos
        if not cursor.advance(src):
            return None


def parts_room(cursor: ProduceCursor) -> int:
    """Room in a writer that the bundles of an open frame do not exceed, whatever batch is open there."""
    return cursor.frame_end - cursor.name_end + _PART_ROOM * cursor.parts


class ChunkCut:
    """A run of bundles in whole batches back to back, as a Consume answer holds it: envelopes left out.

    Attributes:
        size_bytes: of the bundles with their length varints.
        records, batches: how many records, and how many batches they lie in.
        first_seq, last_seq: of the records.
        sparse: whether the first bundle brings its own numbers.
        start, end: the run lies in ``src[start:end]``, from a bundle's length varint to the end of a bundle.
        stopped: the chunk ends here; False: the batches were used up, more may follow from the next one.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.records = 0
        self.batches = 0
        self.first_seq = 0
        self.last_seq = 0
        self.sparse = False
        self.start = 0
        self.end = 0
        self.stopped = False
        self.batch = 0
        self.position = 0
        self.bundle_first_seq = 0
        self.bundle_last_seq = 0
        self.bundle_records = 0
        self.bundle_sparse = False

    def cut(self, src: Buffer, from_seq: int, expected_seq: int, size_bytes_max: int) -> bool:
        """Takes bundles from the one that holds ``from_seq`` (or the next one) on; True if there is any.

        It goes on to the end of the bundle with which ``size_bytes_max`` is reached, and stops before a bundle without
        own numbers that does not continue the one before it, as readers would count on.

        Args:
            src: verified whole batches.
            expected_seq: number that such a bundle must have if it comes first; 0: any.
        """
        self.size_bytes = 0
        self.records = 0
        self.batches = 0
        self.stopped = False
        position = 0
        while position < len(src) and not self.stopped:
            self.check_batch(src, position)
            bundles_start = position + _BATCH_HEADER + src[position + 6]
            bundles_bytes = u32(src, position + 8)
            behind = bundles_start + bundles_bytes + u32(src, position + 12)
            first_seq = u64_at(src, position + 16)
            last_seq = u64_at(src, position + 24)
            if last_seq >= from_seq:
                self.open_bundle(src, bundles_start, bundles_start + bundles_bytes, first_seq)
                fits = self.size_bytes + bundles_bytes <= size_bytes_max
                if first_seq >= from_seq and fits:
                    if self.follows(expected_seq):
                        self.bundle_last_seq = last_seq
                        self.bundle_records = u32(src, position + 32)
                        self.take(position, bundles_start, bundles_start + bundles_bytes)
                        self.batches += 1
                        self.stopped = self.size_bytes >= size_bytes_max
                else:
                    before = self.size_bytes
                    self.cut_batch(src, position, from_seq, expected_seq, size_bytes_max)
                    self.batches += self.size_bytes > before
                if self.size_bytes:
                    expected_seq = self.last_seq + 1
                    from_seq = 0  # the run has no holes
            position = behind
        return self.size_bytes > 0

    def cut_batch(self, src: Buffer, batch: int, from_seq: int, expected_seq: int, size_bytes_max: int) -> None:
        """Takes bundles of one batch, one by one."""
        start = batch + _BATCH_HEADER + src[batch + 6]
        end = start + u32(src, batch + 8)
        next_seq = u64_at(src, batch + 16)
        while start < end and not self.stopped:
            self.open_bundle(src, start, end, next_seq)
            next_seq = self.bundle_last_seq + 1
            behind = self.position
            if self.bundle_last_seq >= from_seq and self.follows(expected_seq):
                self.take(batch, start, behind)
                expected_seq = next_seq
                from_seq = 0
                self.stopped = self.size_bytes >= size_bytes_max
            start = behind

    def follows(self, expected_seq: int) -> bool:
        """Whether the open bundle may come next in the chunk; if not, the chunk has ended."""
        if expected_seq and not self.bundle_sparse and self.bundle_first_seq != expected_seq:
            self.stopped = True
        return not self.stopped

    def take(self, batch: int, start: int, end: int) -> None:
        """Adds the open bundle, or the whole batch that begins with it, at ``src[start:end]``."""
        if self.size_bytes == 0:
            self.batch = batch
            self.start = start
            self.first_seq = self.bundle_first_seq
            self.sparse = self.bundle_sparse
        self.size_bytes += end - start
        self.records += self.bundle_records
        self.last_seq = self.bundle_last_seq
        self.end = end

    def check_batch(self, src: Buffer, position: int) -> None:
        """Raises BatchError unless a whole batch lies at ``position``; its hashes were checked before."""
        left = len(src) - position
        if left < _BATCH_HEADER:
            raise BatchError("cut in a batch header")
        bundles_bytes = u32(src, position + 8)
        extension_bytes = u32(src, position + 12)
        if left < _BATCH_HEADER + src[position + 6] + bundles_bytes + extension_bytes or bundles_bytes == 0:
            raise BatchError("cut in a batch")

    def open_bundle(self, src: Buffer, start: int, end: int, next_seq: int) -> None:
        """Reads the head of the bundle whose length varint is at ``start``; ``position`` is then after the bundle.

        Args:
            end: of the batch's bundles.
            next_seq: number of its first record unless it brings its own.
        """
        size = self.varint(src, start, end)
        start = self.position
        if size > end - start or size == 0:
            raise BatchError("cut in a bundle")
        end = start + size
        flags = src[start]
        count = flags >> 2 & 15
        self.position = start + 1
        if count == 0:
            count = self.varint(src, start + 1, end)
        self.bundle_records = count
        self.bundle_sparse = flags & 0x40 != 0
        last_seq = next_seq + count - 1
        if self.bundle_sparse:
            start = self.position
            if end - start < 8:
                raise BatchError("cut in the head of a bundle")
            next_seq = last_seq = u64_at(src, start)
            if count > 1:
                last_seq = next_seq + self.varint(src, start + 8, end) + 1
        self.bundle_first_seq = next_seq
        self.bundle_last_seq = last_seq
        self.position = end

    def varint(self, src: Buffer, position: int, end: int) -> int:
        """The varint at ``position``; ``self.position`` is then after it."""
        value = 0
        shift = 0
        while position < end and shift <= 28:
            byte = src[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.position = position
                return value
        raise BatchError("cut in a number")

    def copy_to(self, src: Buffer, out: bytearray, position: int) -> int:
        """Writes the run, which ``cut`` found in ``src``, to ``out[position:]``; the position after it."""
        if position < 0 or len(out) - position < self.size_bytes:
            raise ValueError("no room for the run")
        view = out
        batch = self.batch
        start = self.start
        while batch < self.end and self.size_bytes:
            bundles_start = batch + _BATCH_HEADER + src[batch + 6]
            bundles_end = bundles_start + u32(src, batch + 8)
            if start < bundles_start:
                start = bundles_start
            stop = self.end if self.end < bundles_end else bundles_end
            if stop > len(src) or stop - start > len(view) - position:
                raise ValueError("not the source of the run")
            copy(view, position, src, start, stop - start)
            position += stop - start
            batch = bundles_end + u32(src, batch + 12)
        return position

    def ranges(self, src: Buffer) -> list[tuple[int, int]]:
        """The run as slices of ``src``, one a batch, for whoever sends them without copying."""
        found = []
        batch = self.batch
        start = self.start
        while batch < self.end and self.size_bytes:
            bundles_start = batch + _BATCH_HEADER + src[batch + 6]
            bundles_end = bundles_start + u32(src, batch + 8)
            if start < bundles_start:
                start = bundles_start
            stop = self.end if self.end < bundles_end else bundles_end
            found.append((start, stop))
            batch = bundles_end + u32(src, batch + 12)
        return found


def u32(src: Buffer, position: int) -> int:
    """The little-endian u32 there."""
    low = src[position]
    low |= src[position + 1] << 8
    high = src[position + 2]
    high |= src[position + 3] << 8
    return high << 16 | low


def u64_at(src: Buffer, position: int) -> int:
    """The little-endian u64 there."""
    low = u32(src, position)
    high = u32(src, position + 4)
    return high << 32 | low


def same(src: Buffer, start: int, end: int, name: bytes) -> bool:
    """Whether ``src[start:end]`` is ``name``."""
    if end - start != len(name):
        return False
    text = name
    for index in range(end - start):  # noqa: SIM110 (a generator would be a Python object)
        if src[start + index] != text[index]:
            return False
    return True


def put_answer(out: bytearray | memoryview, position: int, request_id: int, parts: int) -> None:
    """Writes the answer "written" to a Produce of so many bundles; the codes are 0 already."""
    view = out
    view[position] = 1
    view[position + 1] = (parts + 4) & 0xFF
    view[position + 2] = (parts + 4) >> 8
    for index in range(4):
        view[position + 5 + index] = request_id >> 8 * index & 0xFF


def copy(out: bytearray | memoryview, position: int, src: Buffer, start: int, size: int) -> None:
    """Copies ``src[start : start + size]`` to ``out[position:]``; the caller has checked both."""
    for index in range(size):
        out[position + index] = src[start + index]


def unpack_chunk(
    chunk: bytes, next_seq: int, from_seq: int
) -> tuple[list[bytes], list[bytes], list[int], list[int], int, int]:
    """The messages of a chunk with a number of at least ``from_seq``; a cut last bundle is left out.

    Args:
        next_seq: number of the first message, unless its bundle brings its own.

    Returns:
        (values, keys, timestamps in ms, numbers, number after the last whole bundle, bytes of whole bundles).

    Raises:
        BundleError: a whole bundle is not valid.
    """
    src = chunk
    cursor = MessageCursor()
    values: list[bytes] = []
    keys: list[bytes] = []
    timestamps: list[int] = []
    seqs: list[int] = []
    position = 0
    end = len(chunk)
    while position < end:
        start = position
        size = 0
        shift = 0
        while start < end:
            byte = src[start]
            start += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise BundleError("overlong length of a bundle")
        else:
            break
        if size > end - start:
            break
        cursor.open(chunk, start, start + size, next_seq)
        cursor.from_seq = from_seq
        data = chunk if cursor.codec == 0 else bytes(cursor.data)
        while cursor.next():
            values.append(data[cursor.value_start : cursor.value_end])
            keys.append(data[cursor.key_start : cursor.key_end])
            timestamps.append(cursor.timestamp)
            seqs.append(cursor.seq)
        next_seq = cursor.last_seq + 1
        position = start + size
    return values, keys, timestamps, seqs, next_seq, position

"""The hot loops of BlipMQ, compiled (if it is) and twin: what they take, where they stop, and that they agree."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from engine.formats.batch import BatchWriter, RecordCursor, records
from engine.formats.batch_header import QOS0_ATTRIBUTE
from netserver.blipmq import codec, frames, frames_pure
from netserver.blipmq.codec import FramingError
from netserver.blipmq.limits import FRAME_LENGTH_MAX

pytestmark = pytest.mark.checked

NOW_MS = 1_700_000_000_000
LENGTH_MAX = FRAME_LENGTH_MAX


@pytest.fixture(params=[frames, frames_pure], ids=["frames", "frames_pure"])
def hot(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def batch(*values: bytes, first_seq: int = 1, qos0: tuple[int, ...] = (), gap_before: tuple[int, ...] = ()) -> bytes:
    """Stored batches with these values; those with an index in ``qos0`` have QoS 0."""
    batches = b""
    seq = first_seq
    for index, value in enumerate(values):
        seq += index in gap_before
        writer = BatchWriter(bytearray(len(value) + 400), seq)
        writer.begin(NOW_MS + index, QOS0_ATTRIBUTE if index in qos0 else 0)
        assert writer.put(value, 0, len(value))
        writer.close_batch()
        batches += bytes(writer.buffer[: writer.position])
        seq += 1
    return batches


def cursor_of(batches: bytes, from_seq: int = 0) -> RecordCursor:
    cursor = RecordCursor(batches, 0, len(batches), from_seq)
    assert cursor.next()
    return cursor


# --- scan


def test_scan_sees_one_frame_or_a_run_of_polls(hot: ModuleType) -> None:
    polls = codec.poll(1, 7) + codec.poll(2, 7) + codec.poll(3, 8) + codec.ack(9, 8) + codec.ping(4)
    assert hot.scan(polls, 0, len(polls), LENGTH_MAX) == (9, 42, 2, 7)
    assert hot.scan(polls, 42, len(polls), LENGTH_MAX) == (9, 63, 1, 8)
    assert hot.scan(polls, 63, len(polls), LENGTH_MAX) == (5, 84, 1, 8)
    assert hot.scan(polls, 84, len(polls), LENGTH_MAX) == (7, 97, 1, 0)
    assert hot.scan(polls, 97, len(polls), LENGTH_MAX) == (0, 97, 0, 0)
    for end in range(22, 42):
        assert hot.scan(polls, 0, end, LENGTH_MAX) == (9, 21, 1, 7), "the cut one is left"
    for end in range(21):
        assert hot.scan(polls, 0, end, LENGTH_MAX) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (codec.frame(9, 1, bytes(8)), 9),
        (codec.frame(9, 1, b"1234567"), 9),
        (codec.frame(5, 1, b"123456789"), 5),
        (codec.frame(3, 1, b""), 3),
        (codec.frame(3, 1, b"\x02\x00\x01t"), 3),
        (codec.frame(3, 1, b"\x01\x00\x00t"), 3),
        (codec.frame(3, 1, b"\x01\x00\x02t"), 3),
    ],
)
def test_scan_leaves_unusual_frames_to_the_codec(hot: ModuleType, frame: bytes, kind: int) -> None:
    assert hot.scan(frame + codec.ping(1), 0, len(frame) + 13, LENGTH_MAX) == (kind, len(frame), 0, 0)


def test_scan_names_the_topic_length(hot: ModuleType) -> None:
    frame = codec.publish(1, 0, b"t" * 300, b"")
    assert hot.scan(frame, 0, len(frame), LENGTH_MAX) == (3, len(frame), 1, 300)


@pytest.mark.parametrize("bad", ["00000000", "00000008", "01000001", "ffffffff", "0000000900", "000000090a"])
def test_scan_refuses_bad_framing_early(hot: ModuleType, bad: str) -> None:
    data = codec.ping(1) + bytes.fromhex(bad)
    with pytest.raises(FramingError):
        hot.scan(data, 13, len(data), LENGTH_MAX)
    with pytest.raises(FramingError):
        hot.scan(codec.ping(1), 0, 13, 8)


# --- publishes


def publishes(count: int, topic: bytes = b"topic", qos: int = 1) -> bytes:
    return b"".join(codec.publish(1000 + n, qos, topic, b"body %d" % n) for n in range(count))


def pack(
    hot: ModuleType, data: bytes, end: int, size: int = 1 << 16, cids: int = 100, **change: object
) -> tuple[int, list[bytes], list[int]]:
    """(position behind, values stored, correlation ids) of one call."""
    arguments = {"topic": b"topic", "qos": 1, "record_bytes_max": 1000} | change
    writer = BatchWriter(bytearray(size), 5)
    writer.begin(NOW_MS)
    numbers = bytearray(8 * cids)
    behind, count = hot.pack_publishes(data, 0, end, writer, *arguments.values(), numbers)
    writer.close_batch()
    values = [record.value for record in records(writer.buffer, 0, writer.position)]
    assert len(values) == count
    return behind, values, [int.from_bytes(numbers[8 * n : 8 * n + 8], "big") for n in range(count)]


def test_a_run_is_packed_up_to_the_cut(hot: ModuleType) -> None:
    data = publishes(3)
    size = len(data) // 3
    for end in range(len(data) + 1):
        whole = end // size
        assert pack(hot, data, end) == (
            whole * size, [b"body %d" % n for n in range(whole)], [1000 + n for n in range(whole)]
        )  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        codec.ping(1),
        codec.publish(1, 0, b"topic", b"x"),
        codec.publish(1, 1, b"topix", b"x"),
        codec.publish(1, 1, b"topi", b"cx"),
        codec.publish(1, 1, b"topic2", b"x"),
        codec.publish(1, 1, b"topic", bytes(1001)),
        codec.frame(3, 1, b"\x01\x00\x05topi"),
        codec.frame(3, 1, b"\x01"),
        bytes.fromhex("0100000103") + bytes(40),
        bytes.fromhex("0000000003") + bytes(40),
    ],
)
def test_a_run_ends_before_anything_else(hot: ModuleType, other: bytes) -> None:
    data = publishes(2) + other + publishes(1)
    behind, values, _ = pack(hot, data, len(data))
    assert (behind, values) == (len(publishes(2)), [b"body 0", b"body 1"])


def test_a_run_ends_where_the_writer_or_the_ids_have_no_room(hot: ModuleType) -> None:
    data = publishes(50)
    size = len(data) // 50
    behind, values, _ = pack(hot, data, len(data), size=250)
    assert 0 < len(values) < 50
    assert behind < len(data)
    assert pack(hot, publishes(5), size * 5, cids=2)[0] == len(publishes(2))


def test_empty_and_largest_bodies(hot: ModuleType) -> None:
    data = codec.publish(1, 1, b"topic", b"") + codec.publish(2, 1, b"topic", b"z" * 1000)
    assert pack(hot, data, len(data)) == (len(data), [b"", b"z" * 1000], [1, 2])


# --- acks


def test_ack_ranges(hot: ModuleType) -> None:
    tags = [1, 2, 3, 7, 8, 8, 9, 2, 0, 1, 1 << 62, 2**64 - 1, 4]
    data = b"xx" + b"".join(codec.ack(tag, 5) for tag in tags)
    assert hot.ack_ranges(data, 2, len(tags), 100) == [
        101, 103, 107, 108, 108, 109, 102, 102, 0, 0, 101, 101, 0, 0, 0, 0, 104, 104,
    ]  # fmt: skip
    assert hot.ack_ranges(data, 2, 0, 100) == []
    assert hot.ack_ranges(data, 2, len(tags) + 1, 100) == []


# --- deliveries


def deliveries(
    hot: ModuleType, cursor: RecordCursor, polls: bytes, *, room: int = 10_000, **change: object
) -> tuple[list[codec.Frame], int, int, bool]:
    """The frames of one call, then how many, why it ended, and the QoS flag."""
    arguments = {
        "last_seq": 1 << 60, "limit": len(polls) // 21, "base": 0, "qos": 1, "topic": b"topic", "polls": polls,
        "polls_position": 0, "expired_before_ms": 0, "age_ms": lambda stamp_ms: NOW_MS - stamp_ms,
    } | change  # fmt: skip
    out = bytearray(room)
    behind, count, state, qos0 = hot.deliver(out, 3, cursor, *arguments.values())
    decoder = codec.Decoder()
    decoder.receive(out[3:behind])
    got = []
    while (frame := decoder.next_frame()) is not None:
        got.append(frame)
    assert decoder.pending_bytes == 0
    return got, count, state, qos0


POLLS = b"".join(codec.poll(500 + n, 9) for n in range(10))


def test_deliveries_carry_tags(hot: ModuleType) -> None:
    batches = batch(b"a", b"", b"ccc", first_seq=41)
    got, count, state, qos0 = deliveries(hot, cursor_of(batches), POLLS, base=40)
    assert (count, state, qos0) == (3, frames.END, False)
    assert [frame.cid for frame in got] == [1, 2, 3]
    assert [codec.parse_publish(frame.payload) for frame in got] == [
        (1, b"topic", b"a"), (1, b"topic", b""), (1, b"topic", b"ccc"),
    ]  # fmt: skip


def test_deliveries_with_qos_0_carry_the_id_of_their_poll(hot: ModuleType) -> None:
    batches = batch(b"a", b"b", b"c")
    got, count, state, qos0 = deliveries(hot, cursor_of(batches), POLLS, qos=0, limit=2)
    assert (count, state, qos0) == (2, frames.PENDING, True)
    assert [frame.cid for frame in got] == [500, 501]
    assert [codec.parse_publish(frame.payload).qos for frame in got] == [0, 0]


def test_a_run_of_deliveries_has_one_qos_and_no_gap(hot: ModuleType) -> None:
    cursor = cursor_of(batch(b"a", b"b", b"c", b"d", qos0=(1, 2), gap_before=(3,)))
    assert deliveries(hot, cursor, POLLS)[1:] == (1, frames.PENDING, False)
    got, *rest = deliveries(hot, cursor, POLLS[21:])
    assert (rest, [frame.cid for frame in got]) == ([2, frames.PENDING, True], [501, 502])
    got, *rest = deliveries(hot, cursor, POLLS)
    assert (rest, [frame.cid for frame in got]) == ([1, frames.END, False], [5])
    cursor = cursor_of(batch(b"a", b"b", gap_before=(1,)))
    assert deliveries(hot, cursor, POLLS, qos=0)[1:] == (1, frames.PENDING, True)
    assert cursor.seq == 3


def test_deliveries_stop_at_their_last_number(hot: ModuleType) -> None:
    cursor = cursor_of(batch(*[b"%d" % n for n in range(9)]))
    assert deliveries(hot, cursor, POLLS, last_seq=4)[1:] == (4, frames.PENDING, False)
    assert deliveries(hot, cursor, POLLS, last_seq=4)[1:] == (0, frames.PENDING, False)
    assert cursor.seq == 5


def test_old_records_are_left(hot: ModuleType) -> None:
    cursor = cursor_of(batch(b"a", b"b"))
    assert deliveries(hot, cursor, POLLS, expired_before_ms=NOW_MS)[1:] == (2, frames.END, False)
    cursor = cursor_of(batch(b"a", b"b"))
    assert deliveries(hot, cursor, POLLS, expired_before_ms=NOW_MS + 1)[1:] == (0, frames.SKIP, False)
    assert cursor.next()
    assert deliveries(hot, cursor, POLLS, expired_before_ms=NOW_MS + 1)[1:] == (1, frames.END, False)


def test_room_for_deliveries(hot: ModuleType) -> None:
    size = 16 + 5 + 100
    for room in range(3 + 2 * size - 2, 3 + 2 * size + 2):
        cursor = cursor_of(batch(bytes(100), bytes(100)))
        fits = room >= 3 + 2 * size
        expected = (2, frames.END, False) if fits else (1, frames.FULL, False)
        assert deliveries(hot, cursor, POLLS, room=room)[1:] == expected


def test_the_largest_delivery_and_one_more_byte(hot: ModuleType) -> None:
    body = FRAME_LENGTH_MAX - 12 - 5
    got, *rest = deliveries(hot, cursor_of(batch(bytes(body))), POLLS, room=FRAME_LENGTH_MAX + 100)
    assert rest == [1, frames.END, False]
    assert len(got[0].payload) == FRAME_LENGTH_MAX - 9
    cursor = cursor_of(batch(bytes(body + 1)))
    assert deliveries(hot, cursor, POLLS, room=FRAME_LENGTH_MAX + 100)[1:] == (0, frames.SKIP, False)


# --- both


def test_a_range_outside_the_source_is_left_alone(hot: ModuleType) -> None:
    frame = codec.publish(7, 1, b"t", b"body")
    writer = BatchWriter(bytearray(500), 1)
    writer.begin(NOW_MS)
    for position, end in ((-1, len(frame)), (0, len(frame) + 1)):
        assert hot.scan(frame, position, end, LENGTH_MAX) == (0, position, 0, 0)
        assert hot.pack_publishes(frame, position, end, writer, b"t", 1, 100, bytearray(8)) == (position, 0)
    cursor = cursor_of(batch(b"a", b"b"))
    assert deliveries(hot, cursor, POLLS[:21], limit=2) == ([], 0, frames.PENDING, False), "more than there are polls"
    assert deliveries(hot, cursor, POLLS, polls_position=-1) == ([], 0, frames.PENDING, False)
    assert deliveries(hot, cursor, POLLS, limit=1)[1] == 1


def test_both_agree_on_random_input() -> None:
    random_ = random.Random(7)
    parts = [
        codec.ping(1), codec.poll(2, 3), codec.poll(4, 3), codec.ack(1, 3), codec.ack(2, 3), codec.poll(5, 6),
        codec.publish(7, 1, b"topic", b"x"), codec.publish(8, 1, b"topic", b"yy"), codec.publish(9, 0, b"t", b""),
        codec.subscribe(1, b"topic", 1), codec.hello(1), codec.frame(9, 2, b"abc"),
    ]  # fmt: skip
    for _ in range(3000):
        data = bytearray(b"".join(random_.choices(parts, k=random_.randrange(1, 8))))
        for _ in range(random_.randrange(3)):
            data[random_.randrange(len(data))] = random_.choice((0, 1, 3, 5, 9, 255, random_.randrange(256)))
        end = random_.randrange(len(data) + 1)
        position = 0
        while True:
            results = []
            for hot in (frames, frames_pure):
                try:
                    results.append(hot.scan(data, position, end, LENGTH_MAX))
                except FramingError as error:
                    results.append((error.kind,))
            assert results[0] == results[1]
            if len(results[0]) == 1 or results[0][0] == 0:
                break
            rest = bytes(data[position:])
            assert pack(frames, rest, end - position) == pack(frames_pure, rest, end - position)
            if results[0][0] == 5 and results[0][2]:
                found = [hot.ack_ranges(data, position, results[0][2], 10) for hot in (frames, frames_pure)]
                assert found[0] == found[1]
            position = results[0][1]


def test_messages_outlive_the_time_that_their_publisher_gave_them() -> None:
    """The compiled twin has it as a C function, and is tested by what it delivers."""
    ttl = frames_pure.TTL_HEADER

    def age_ms(stamp_ms: int) -> int:
        return NOW_MS - stamp_ms

    assert not frames_pure.has_expired((), 0, age_ms)
    assert not frames_pure.has_expired((b"other", b"1"), 0, age_ms), "another header"
    assert frames_pure.has_expired((b"other", b"1", ttl, b"5000"), NOW_MS - 60_000, age_ms)
    assert not frames_pure.has_expired((ttl, b"120000"), NOW_MS - 60_000, age_ms)
    for text in (b"", b"-5", b"5s", b"9" * 200):
        assert not frames_pure.has_expired((ttl, text), 0, age_ms), "what others write there means nothing"

"""Produce requests of very many records, or headers: appended in short steps, all one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.errors import NotStored
from engine.formats.batch import RecordCursor
from engine.limits import WRITE_BATCH_BYTES_MAX
from engine.partitions.partition import Partition
from engine.segments.batches import PENDING
from engine.state.store import OnDone
from netserver.app import Server
from netserver.kafka import appending, session
from netserver.kafka.apis import Key
from netserver.kafka.appending import Appended, append_in_steps, append_records
from netserver.kafka.checking import Records, check_records
from netserver.kafka.codec import Head
from netserver.kafka.committed import Committed, Offsets, Place
from netserver.kafka.errors import Code
from netserver.kafka.limits import (
    ANSWERED_AT_ONCE_PARTS,
    APPENDED_AT_ONCE_PARTS,
    APPENDED_AT_ONCE_US,
    COMMITTED_AT_ONCE,
    PACKED_OBJECTS_MAX,
    PACKED_RECORDS,
    RECORDS_MAX,
)
from netserver.kafka.producing import Part, Producer
from netserver.kafka.record_errors import RecordsError
from netserver.kafka.schema import Encoded, Values
from tests.engine_log import EngineLog
from tests.kafka_peer import (
    Peer,
    Record,
    all_errors,
    batch,
    by_topic,
    crc32c,
    produce,
    records_of,
    result_of,
    with_server,
)

HEADERS = (("h", b"x"), ("n", None))
Steps = Generator[None, None, Appended]


class Waiter:
    """Is told, and does nothing."""

    def round_done(self) -> None:
        """See the class."""


WAITER = Waiter()


def checked(*records: Record | bytes, **options: Any) -> Records:
    return check_records(batch(*records, **options), 1 << 20)


def outcome(steps: Steps) -> Appended:
    """Goes through all that is left."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: Appended = stop.value
            return found


def settled(log: EngineLog, appended: Appended) -> None:
    for write_batch, _, _ in appended.write_batches:
        log.inbox.run_until(lambda write_batch=write_batch: write_batch.state != PENDING)


def watch_packing(monkeypatch: pytest.MonkeyPatch, told: Callable[[int], object]) -> None:
    """Has each call that puts records into the log's form tell how many they were."""

    def watched(walk: Any, writer: Any, stop: int, now_ms: int) -> tuple[int, int, bool]:
        found = pack(walk, writer, stop, now_ms)
        told(found[0])
        return found

    pack: Callable[..., tuple[int, int, bool]] = appending.pack_records
    monkeypatch.setattr(appending, "pack_records", watched)


def test_no_step_puts_more_than_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[int] = []
    watch_packing(monkeypatch, put.append)
    rich = checked(*[Record(b"v", b"k", headers=HEADERS)] * 2000)
    plain = checked(*[b"v"] * 3 * PACKED_RECORDS)
    with EngineLog(tmp_path) as log:
        for records, most in ((rich, PACKED_OBJECTS_MAX // 3 + 1), (plain, PACKED_RECORDS)):
            put.clear()
            steps, turns = append_in_steps(log.partition(), records, WAITER), 0
            for _ in steps:
                turns += 1
                assert len(put) <= turns, "one call a step"
            assert turns >= records.count // most
            assert max(put) <= most
            assert sum(put) == records.count


@pytest.mark.parametrize("producer", [(-1, -1, -1), (7, 0, 0)], ids=["plain", "idempotent"])
def test_records_that_are_appended_at_once_go_on_in_another_write_batch(
    tmp_path: Path, producer: tuple[int, int, int]
) -> None:
    """A round may begin with the first of them, which ends the write batch that they were in."""
    messages = [Record(b"%d" % index, headers=HEADERS[:1]) for index in range(450)]
    with EngineLog(tmp_path) as log:
        partition = log.partition()
        large = append_records(partition, checked(*[b"x" * 1000] * 1000), WAITER)
        settled(log, large)  # from now on there is room for all in one write batch
        records = checked(*messages, producer=producer)
        assert 2 * len(messages) > PACKED_OBJECTS_MAX
        assert records.work_us <= APPENDED_AT_ONCE_US
        settled(log, append_records(partition, records, WAITER))
        assert [record.value for record in log.read(start=1001)] == [message.value for message in messages]


def test_records_of_others_come_before_or_behind(tmp_path: Path) -> None:
    messages = [Record(b"%d" % index, b"k", headers=HEADERS) for index in range(1500)]
    with EngineLog(tmp_path) as log:
        partition = log.partition()
        steps = append_in_steps(partition, checked(*messages), WAITER)
        for _ in range(3):
            next(steps)
        other = append_records(partition, checked(b"other"), WAITER)
        appended = outcome(steps)
        behind = append_records(partition, checked(b"behind"), WAITER)
        assert (other.base_seq, appended.base_seq, behind.base_seq) == (1, 2, 1502)
        settled(log, appended)
        settled(log, behind)
        stored = log.read()
        assert [record.value for record in stored] == [b"other", *(message.value for message in messages), b"behind"]
        assert stored[1].headers == (b"h", b"x", b"n", b"")


@pytest.mark.parametrize("first", [0, 700], ids=["all", "the end"])
def test_what_came_again_meanwhile_is_stored_once(tmp_path: Path, first: int) -> None:
    messages = [Record(b"%d" % index, headers=HEADERS) for index in range(1500)]
    with EngineLog(tmp_path) as log:
        partition = log.partition()
        if first:
            append_records(partition, checked(*messages[:first], producer=(7, 0, 0)), WAITER)
        steps = append_in_steps(partition, checked(*messages, producer=(7, 0, 0)), WAITER)
        for _ in range(3):
            next(steps)
        again = append_records(partition, checked(*messages, producer=(7, 0, 0)), WAITER)
        appended = outcome(steps)
        assert appended.base_seq == again.base_seq == 1
        settled(log, appended)
        assert [record.value for record in log.read()] == [message.value for message in messages]
        once_more = outcome(append_in_steps(partition, checked(*messages, producer=(7, 0, 0)), WAITER))
        assert once_more == Appended(1, [])


def test_what_was_packed_is_not_appended_where_nothing_can_be_stored(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        partition = log.partition()
        steps = append_in_steps(partition, checked(*[Record(None)] * 1500), WAITER)
        next(steps)
        partition.removed(NotStored("deleted"))
        with pytest.raises(NotStored, match="deleted"):
            outcome(steps)
        assert partition.last_seq == 0


def test_numbers_are_reserved_before_anybody_sees_them(tmp_path: Path) -> None:
    """Write batches that were numbered late, of a topic whose records are seen before they are on disk."""
    with EngineLog(tmp_path, topic=TopicConfig(durability="interval")) as log:
        partition: Partition = log.partition()
        appended = outcome(append_in_steps(partition, checked(*[Record(None)] * 1500), WAITER))
        assert not partition.may_commit()
        settled(log, appended)
        assert partition.committed_seq == 1500


def test_more_records_than_are_numbered_at_once_are_too_large() -> None:
    data = bytearray(batch(b"v"))
    data[23:27] = RECORDS_MAX.to_bytes(4, "big")
    data[57:61] = (RECORDS_MAX + 1).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    with pytest.raises(RecordsError) as raised:
        check_records(data, 1 << 20)
    assert raised.value.code == 10


def test_a_short_request_of_many_tombstones_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is below what a thread checks, and was appended in one turn of 20 ms. No time is left in any turn here."""
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    sent = [Record(None, b"k", headers=HEADERS)] * 1800

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t") == 0
        await peer.produce("t", b"first")
        turns: set[int] = set()
        watch_packing(monkeypatch, lambda _records: turns.add(server.log.slices.turn_of()))
        answer = result_of(await peer.ask(Key.PRODUCE, produce("t", batch(*sent))))
        assert (answer["error"], answer["offset"]) == (0, 2)
        assert len(turns) > 5
        assert checked(*sent).work_us > APPENDED_AT_ONCE_US
        found = await peer.fetch("t", 1800)
        assert [record.value for record in records_of(bytes(found["records"]))][-2:] == [None, None]

    with_server(test)


def test_a_record_larger_than_a_write_batch_is_in_one_and_is_read(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        for size in (100, WRITE_BATCH_BYTES_MAX - 1000, WRITE_BATCH_BYTES_MAX, WRITE_BATCH_BYTES_MAX + 1):
            appended = append_records(log.partition(), checked(bytes(size), b"next"), WAITER)
            settled(log, appended)
            assert all(count for _, count, _ in appended.write_batches)
            records = RecordCursor(*whole(log, appended.base_seq), appended.base_seq)
            assert records.next()
            assert records.value_end - records.value_start == size


def whole(log: EngineLog, seq: int) -> tuple[memoryview, int, int]:
    """What a reader of the partition gets."""
    found: list[bool] = []
    while (read_batch := log.partition().read(seq, 1 << 16, lambda: found.append(True))) is None:
        log.inbox.run_until(lambda: bool(found))
        found.clear()
    return read_batch.buffer, 0, len(read_batch.buffer)


def test_a_request_to_many_partitions_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    count = 2 * APPENDED_AT_ONCE_PARTS

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t") == 0
        turns: set[int] = set()
        closed_partition = Producer.closed_partition

        def watched(self: Producer, part: Part) -> Partition | None:
            turns.add(server.log.slices.turn_of())
            return closed_partition(self, part)

        monkeypatch.setattr(Producer, "closed_partition", watched)
        partitions = [{"index": index, "records": batch(b"x")} for index in range(count)]
        answer = await peer.ask(Key.PRODUCE, by_topic("t", partitions, acks=-1, timeout_ms=1000))
        assert all_errors(answer) == [0] + [3] * (count - 1)
        assert len(turns) > count // 4

    with_server(test)


def test_an_answer_about_many_partitions_is_put_together_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 partitions it took one turn of 100 ms."""
    count = ANSWERED_AT_ONCE_PARTS + 1
    encode, encoded = session.encode_response, []

    def watched(head: Head, body: Values) -> bytearray:
        encoded.append(type(body["topics"]))
        return encode(head, body)

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t") == 0
        monkeypatch.setattr(session, "encode_response", watched)
        body = by_topic("t", [{"index": 0, "records": batch(b"x")}] + [{"index": 1, "records": b""}] * (count - 1))
        peer.send(Key.PRODUCE, body | {"acks": -1, "timeout_ms": 1000})
        peer.send(Key.PRODUCE, produce("t", batch(b"behind")))
        first, second = await peer.answer(), await peer.answer()
        assert list(all_errors(first)) == [0] + [Code.INVALID_RECORD] * (count - 1)
        assert (result_of(first)["offset"], result_of(second)["offset"]) == (1, 2)
        assert encoded == [Encoded, list], "what is short is put together at once"

    with_server(test)


def test_a_commit_of_many_offsets_is_several_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One change of 50,000 took turns of 300 ms."""
    count = 2 * COMMITTED_AT_ONCE + 1
    commit, sizes = Offsets.commit, []

    def watched(self: Offsets, group: str, places: dict[Place, Committed], on_done: OnDone) -> None:
        sizes.append(len(places))
        commit(self, group, places, on_done)

    monkeypatch.setattr(Offsets, "commit", watched)

    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t", count) == 0
        offsets = [{"index": index, "offset": index, "metadata": None} for index in range(count)]
        body = by_topic("t", offsets, group="g", generation=-1, member="", instance=None)
        assert set(all_errors(await peer.ask(Key.OFFSET_COMMIT, body))) == {0}
        assert sizes == [COMMITTED_AT_ONCE, COMMITTED_AT_ONCE, 1]
        found = await peer.ask(Key.OFFSET_FETCH, {"group": "g", "topics": None})
        assert [one["offset"] for one in found["topics"][0]["partitions"]] == list(range(count))

    with_server(test)

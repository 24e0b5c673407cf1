"""One record as each protocol sees it: the bytes of the frame, or the line, in which a reader would get it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.formats.batch import BatchWriter
from engine.formats.bundle_encode import encode_bundle
from netserver.blipmq import codec as blipmq
from netserver.console.limits import LOOK_ROOM_BYTES
from netserver.figg import codec as figg
from netserver.fujin import codec as fujin
from netserver.http.json_lines import line_of
from netserver.kafka.records import build_records
from netserver.reliably.topic_stream import record_line

if TYPE_CHECKING:
    from engine.formats.record import Record


@dataclass(frozen=True, slots=True)
class Look:
    """How a record looks.

    Attributes:
        what: name of the frame, and what is particular to this protocol.
        problem: why it cannot carry the record; empty: it can.
    """

    protocol: str
    what: str
    frame: bytes = b""
    problem: str = ""


def looks_of(topic: bytes, partition: int, record: Record) -> list[Look]:
    """A small record as its readers would get it."""
    makers: tuple[tuple[str, str, Callable[[], bytes]], ...] = (
        ("figg", "DATA, its offset is the record's", lambda: figg.data(topic, record.seq, record.value)),
        ("tank", "a bundle of one message", lambda: _bundle(record)),
        ("blipmq", "PUBLISH, its tag is counted by the subscription", lambda: _delivery(topic, record)),
        ("fujin", "a message with its id", lambda: _message(partition, record)),
        ("kafka", "a batch of one record, uncompressed", lambda: _kafka_batch(record)),
        ("reliably", "a line, its id is counted by the session", lambda: record_line(1, record)),
        ("http", "a line of JSON", lambda: line_of(partition, record)),
    )
    found = []
    for protocol, what, make in makers:
        try:
            found.append(Look(protocol, what, make()))
        except (ValueError, OverflowError) as problem:
            found.append(Look(protocol, what, problem=str(problem)))
    return found


def _bundle(record: Record) -> bytes:
    return encode_bundle([record.value], [record.key], [record.timestamp_ms], sparse_seqs=[record.seq])


def _delivery(topic: bytes, record: Record) -> bytes:
    return blipmq.publish(record.seq, 0 if record.qos0 else 1, topic, record.value)


def _kafka_batch(record: Record) -> bytes:
    size_bytes = len(record.value) + 2 * sum(map(len, (record.any_key or b"", *record.headers)))
    writer = BatchWriter(bytearray(size_bytes + LOOK_ROOM_BYTES + 16 * len(record.headers)), record.seq)
    writer.begin(record.timestamp_ms)
    writer.put_record(record.value, record.key, record.timestamp_ms, record.headers, record.marks)
    writer.close_batch()
    return bytes(build_records(memoryview(writer.buffer)[: writer.position], record.seq, 1)[0])


def _message(partition: int, record: Record) -> bytes:
    return fujin.message(fujin.message_id(partition, record.seq), record.value)

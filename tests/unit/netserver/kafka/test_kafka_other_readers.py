"""Null values, empty and long keys, null values of headers: JSON shows them, as do `cat` and the console; every other
reader has an empty value, and no key."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from engine.formats.bundle import decode_bundle
from engine.formats.record import Marks, Record
from engine.reader import DirectoryReader
from netserver.console.looks import looks_of
from netserver.http import frames, frames_pure
from netserver.http.json_lines import line_of
from netserver.kafka.appending import append_records
from netserver.kafka.checking import check_records
from netserver.tank import frames as tank_frames
from netserver.tank import frames_pure as tank_frames_pure
from tests.engine_log import EngineLog
from tests.kafka_batches import TIME, Message, batch
from tests.kafka_peer import records_of
from tests.tank_peer import bundles_of
from tests.unit.conftest import Logtool
from tools.logtool.lib.record_sources import record_of

pytestmark = pytest.mark.checked

MESSAGES = [
    Message(b"usual", b"key"),
    Message(None, b"deleted"),
    Message(b"v", b""),
    Message(b"v", b"k" * 300),
    Message(None, None, TIME, ((b"h", None),)),
]
SEEN = [
    Record(1, TIME, b"key", b"usual"),
    Record(2, TIME, b"deleted", b"", marks=Marks(is_null=True)),
    Record(3, TIME, b"", b"v", marks=Marks(key=b"")),
    Record(4, TIME, b"", b"v", marks=Marks(key=b"k" * 300)),
    Record(5, TIME, b"", b"", (b"h", b""), marks=Marks(is_null=True, null_headers=(0,))),
]
LINES = [
    {"key": "key", "value": "usual"},
    {"key": "deleted", "value": None},
    {"key": "", "value": "v"},
    {"key": "k" * 300, "value": "v"},
    {"value": None, "headers": [{"name": "h", "value": None}]},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log")
    with EngineLog(path) as log:
        records = check_records(batch(MESSAGES, producer=(5, 0, 0)), 1 << 20)
        ((write_batch, _, _),) = append_records(log.partition(), records, log).write_batches  # type: ignore[arg-type]
        write_batch.waiters.clear()
        log.settle(write_batch)
    return path


@pytest.fixture
def batches(directory: Path) -> bytes:
    with EngineLog(directory) as log:
        read_batch = log.partition().read(1, 1 << 20, lambda: None)
        assert read_batch is not None
        return bytes(read_batch.buffer)


def test_a_reader_of_the_directory(directory: Path) -> None:
    reader = DirectoryReader(directory)
    partition = reader.partition(reader.topic(b"t"), 0)
    assert list(partition.records(1, 6)) == SEEN


@pytest.mark.parametrize("module", [frames, frames_pure], ids=["compiled", "pure"])
def test_http(batches: bytes, module: ModuleType) -> None:
    assert module.frame_lines(batches, 1, 5, 0, 1 << 20, 100)[1:] == (2, 1), "the usual one"
    for seq in range(2, 6):
        assert module.frame_lines(batches, seq, 5, 0, 1 << 20, 100)[1:] == (seq, 0), "they are left to `line_of`"
    head = {"partition": 0, "timestamp_ms": TIME}
    for record, line in zip(SEEN, LINES, strict=True):
        assert json.loads(line_of(0, record)) == head | {"offset": record.seq} | line
        assert record_of(json.loads(line_of(0, record))) == (0, record), "as `cat` reads it"
    assert bytes(module.frame_lengths(batches, 1, 5, 1 << 20, 100)[0]) == b"\0\0\0\5usual" + bytes(
        4
    ) + b"\0\0\0\1v" * 2 + bytes(4)


@pytest.mark.parametrize("module", [tank_frames, tank_frames_pure], ids=["compiled", "pure"])
def test_tank(batches: bytes, module: ModuleType) -> None:
    cut = module.ChunkCut()
    assert cut.cut(batches, 1, 0, 1 << 20)
    chunk = bytearray(cut.size_bytes)
    assert cut.copy_to(batches, chunk, 0) == len(chunk)
    seen = []
    for bundle in bundles_of(bytes(chunk)):
        seen += decode_bundle(bundle, 0, len(bundle), len(seen) + 1)
    assert seen == [
        Record(*[getattr(record, name) for name in ("seq", "timestamp_ms", "key", "value")]) for record in SEEN
    ]


def test_cat(directory: Path, logtool: Logtool) -> None:
    code, out, _ = logtool("--data-dir", str(directory), "cat", "t", "--format", "%k=%v\\n")
    assert (code, out) == (0, f"key=usual\ndeleted=(null)\n=v\n{'k' * 300}=v\n=(null)\n")
    code, out, _ = logtool("--data-dir", str(directory), "cat", "t", "-o", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert [{name: one[name] for name in ("key", "value", "headers") if name in one} for one in found] == LINES
    assert logtool("--data-dir", str(directory), "cat", "t", "--key", "k" * 300)[1] == "v\n"
    assert logtool("--data-dir", str(directory), "cat", "t", "-o", "csv")[1].splitlines()[2].endswith(",deleted,")
    code, out, _ = logtool("--data-dir", str(directory), "cat", "t", "--from", "5", "--decode", "json")
    assert (code, out) == (0, "(null)\n")


def test_the_console_shows_the_batch_that_a_client_gets() -> None:
    for record, message in zip(SEEN, MESSAGES, strict=True):
        (look,) = [look for look in looks_of(b"t", 0, record) if look.protocol == "kafka"]
        ((value, key, _, headers, offset),) = records_of(look.frame)
        assert (value, key, offset) == (message.value, message.key, record.seq)
        assert [value for _, value in headers] == [value for _, value in message.headers]

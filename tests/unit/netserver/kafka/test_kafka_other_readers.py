"""Null values, empty and long keys, null values of headers: every other reader has an empty value, and no key."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from engine.formats.bundle import decode_bundle
from engine.formats.record import Record
from engine.reader import DirectoryReader
from netserver.http import frames, frames_pure
from netserver.kafka.appending import append_records
from netserver.kafka.checking import check_records
from netserver.tank import frames as tank_frames
from netserver.tank import frames_pure as tank_frames_pure
from tests.engine_log import EngineLog
from tests.kafka_batches import TIME, Message, batch
from tests.tank_peer import bundles_of
from tests.unit.conftest import Logtool

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
    Record(2, TIME, b"deleted", b""),
    Record(3, TIME, b"", b"v"),
    Record(4, TIME, b"", b"v"),
    Record(5, TIME, b"", b"", (b"h", b"")),
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
    lines, next_seq, count = module.frame_lines(batches, 1, 4, 0, 1 << 20, 100)
    assert (next_seq, count) == (5, 4)
    wanted = [{"key": "key", "value": "usual"}, {"key": "deleted", "value": ""}, {"value": "v"}, {"value": "v"}]
    found = [json.loads(line) for line in bytes(lines).splitlines()]
    assert [{name: line[name] for name in ("key", "value") if name in line} for line in found] == wanted
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
    assert (code, out) == (0, "key=usual\ndeleted=\n=v\n=v\n=\n")

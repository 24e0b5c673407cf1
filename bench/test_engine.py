"""The engine alone, durable: appends by batch size, reads, walking a segment, recovery, index. Run by ``make bench``.

Figures of appends are commit rounds: seal, write, fdatasync, watermark, callback. Nothing here is a test of speed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.config import EngineConfig, TopicConfig
from engine.files.system import SystemFiles
from engine.formats.batch import RecordCursor
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.segments.damage import Found, walk
from engine.state.index import Index
from tests.engine_log import EngineLog, segments

RECORDS = 200_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineLog]:
    with EngineLog(tmp_path / "log") as log:
        yield log


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 200,000 records of 100 B in one topic, closed."""
    path = tmp_path_factory.mktemp("stored") / "log"
    with EngineLog(path) as log:
        for _ in range(RECORDS // 1000):
            log.append([b"x" * 100] * 1000)
    return path


@pytest.mark.parametrize("size", [100, 1024])
@pytest.mark.parametrize("records", [1, 10, 100])
def test_append_and_wait(benchmark: BenchmarkFixture, engine: EngineLog, records: int, size: int) -> None:
    values = [b"x" * size] * records
    engine.append(values)
    partition = engine.partition()
    benchmark.extra_info["records"] = records
    benchmark(lambda: engine.settle(partition.append(values)))


def test_read_from_memory(benchmark: BenchmarkFixture, engine: EngineLog) -> None:
    for _ in range(100):
        engine.append([b"x" * 100] * 1000)
    partition = engine.partition()

    def read_all() -> int:
        seq = 1
        while seq <= partition.committed_seq:
            read_batch = partition.read(seq, 1 << 18, None)
            assert read_batch is not None
            seq = read_batch.last_seq + 1
        return seq

    benchmark.extra_info["records"] = 100_000
    assert benchmark(read_all) == 100_001


def test_read_from_files(benchmark: BenchmarkFixture, stored: Path) -> None:
    with EngineLog(stored) as log:
        partition = log.partition()

        def read_all() -> int:
            seq = count = 1
            while seq <= partition.committed_seq:
                read_batch = partition.read(seq, 1 << 18, lambda: None)
                if read_batch is None:
                    log.inbox.run_pending()
                    continue
                seq = read_batch.last_seq + 1
                count += 1
            return seq

        benchmark.extra_info["records"] = RECORDS
        assert benchmark(read_all) == RECORDS + 1


def test_walk_a_segment(benchmark: BenchmarkFixture, stored: Path) -> None:
    """Verifying every batch and touching every record."""
    (path,) = segments(stored)
    data = path.read_bytes()
    segment_id = parse_header(data, path).segment_id

    def scan() -> int:
        records = 0
        for item in walk(lambda at, size: data[at : at + size], HEADER_BYTES, len(data), segment_id, 1):
            assert isinstance(item, Found)
            cursor = RecordCursor(item.data, item.start, item.end)
            while cursor.next():
                records += 1
        return records

    benchmark.extra_info["records"] = RECORDS
    assert benchmark(scan) == RECORDS


def test_recovery(benchmark: BenchmarkFixture, stored: Path, tmp_path: Path) -> None:
    """Opening after an unclean stop, with the first use of the topic."""

    def fresh() -> tuple[tuple[Path], dict[str, object]]:
        target = tmp_path / "crashed"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(stored, target)
        (target / "watermarks").unlink()
        return (target,), {}

    def open_log(path: Path) -> None:
        with EngineLog(path) as log:
            assert log.partition().last_seq == RECORDS

    benchmark.extra_info["records"] = RECORDS
    benchmark.pedantic(open_log, setup=fresh, rounds=5)


def test_index_lookup(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    files = SystemFiles()
    config = EngineConfig(topic=TopicConfig())
    index = Index(tmp_path / "index", files, config)
    for n in range(10_000):
        index.add(1, 1 + n * 600, 7, 1, 72 + n * 65_536, 1_700_000_000_000 + n)
    index.flush()
    entry = benchmark(lambda: index.floor(1, 3_000_123))
    assert entry is not None
    assert entry.first_seq <= 3_000_123 < entry.first_seq + 600
    index.close()

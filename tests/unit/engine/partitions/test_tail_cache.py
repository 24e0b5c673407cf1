"""What stays in memory of the newest records: write batches are kept, put together and dropped; their buffers."""

from __future__ import annotations

from pathlib import Path

from engine.limits import FREE_BUFFER_BYTES_MAX, TAIL_MERGED_BYTES, WRITE_BATCH_BYTES_MAX
from tests.engine_log import EngineLog


def test_free_buffers_are_bounded_and_those_in_use_are_not_taken_back(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        pool = engine.log.context.buffers
        size = WRITE_BATCH_BYTES_MAX
        for _ in range(2 * FREE_BUFFER_BYTES_MAX // size):
            pool.give(bytearray(size))
        assert pool._free_bytes <= FREE_BUFFER_BYTES_MAX
        kept = pool._free_bytes
        while pool._free_bytes:
            pool.take(size)
        looked_at = bytearray(size)
        view = memoryview(looked_at)
        pool.give(looked_at)
        assert pool._free_bytes == 0
        pool.give(bytearray(size - 1))
        assert pool._free_bytes == 0, "no write batch asks for such a size"
        view.release()
        pool.give(looked_at)
        assert pool._free_bytes == size <= kept


def test_old_write_batches_leave_the_tail_in_their_order(tmp_path: Path) -> None:
    from engine.partitions.tail_cache import COMPACT_ENTRIES

    with EngineLog(tmp_path / "d", tail_cache_bytes=1 << 20) as engine:
        partition = engine.partition()
        for number in range(2 * COMPACT_ENTRIES):
            engine.append([b"%d" % number + b"." * 5000])  # too large to be put together
            assert len(partition.tail.write_batches) <= COMPACT_ENTRIES + (1 << 20) // 5000
        assert 0 < len(partition.tail.write_batches) - partition.tail._head <= 1 + (1 << 20) // 5000
        assert len(partition.tail.write_batches) < 2 * COMPACT_ENTRIES
        assert [record.seq for record in engine.read()] == list(range(1, 2 * COMPACT_ENTRIES + 1))


def test_small_write_batches_become_one_in_memory(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        values = [b"%d" % number * (number % 30 + 1) for number in range(900)]
        held = []
        for number, value in enumerate(values, 1):
            engine.append([value])
            read_batch = partition.read(number, 1 << 16, None)
            assert read_batch is not None
            assert (read_batch.first_seq, read_batch.last_seq) == (number, number)
            held.append((read_batch, bytes(read_batch.buffer)))
        assert all(bytes(read_batch.buffer) == content for read_batch, content in held), (
            "what a reader holds does not change"
        )
        write_batches = [write_batch for write_batch in partition.tail.write_batches if write_batch is not None]
        assert len(write_batches) < 20
        assert (
            engine.log.parts.tail_cache.size_bytes
            == sum(len(write_batch.buffer) for write_batch in write_batches)
            < 3 * TAIL_MERGED_BYTES
        )
        assert engine.values() == values
        read_batch = partition.read(450, 1 << 16, None)
        assert read_batch is not None
        assert read_batch.first_seq == 450
        assert read_batch.last_seq > 500, "a late reader gets many at once"


def test_small_write_batches_of_several_segments_stay_apart(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        partition = engine.partition()
        for number in range(6):
            if number % 2 == 0:
                engine.log.committer.roll_next(partition)
            engine.append([b"%d" % number])
        write_batches = [write_batch for write_batch in partition.tail.write_batches if write_batch is not None]
        assert [(write_batch.first_seq, write_batch.last_seq) for write_batch in write_batches] == [
            (1, 2),
            (3, 4),
            (5, 6),
        ]
        assert engine.values() == [b"%d" % number for number in range(6)]

"""Who waits for a round waits for its files: what else is in it is bounded, and so is what comes before it."""

from __future__ import annotations

from pathlib import Path

from engine.formats.extension import Producer
from engine.limits import ROUND_PARTS_MAX
from engine.segments.batches import COMMITTED
from tests.engine_log import EngineLog
from tests.hooked_files import HookedFiles, held

PARTITIONS = 100


class Waiter:
    def round_done(self) -> None:
        """Nothing."""


def test_who_waits_for_one_partition_is_in_the_next_round_whatever_another_one_has_written(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        topic = engine.log.catalog.create(b"wide", partition_count=PARTITIONS)
        wide = [engine.log.partition(topic, index) for index in range(PARTITIONS)]
        one = engine.partition("one")
        for batch in [partition.append([b"made"]) for partition in (*wide, one)]:
            engine.settle(batch)
        flood, patient = Waiter(), Waiter()
        counters = engine.log.committer.counters
        rounds, files = counters.rounds, counters.files
        others = [partition.append([b"x"], waiter=flood) for partition in wide]
        own = engine.settle(one.append([b"x"], waiter=patient))
        assert own.state == COMMITTED
        assert counters.rounds - rounds == 2, "the one under way, and its own"
        assert counters.files - files <= 1 + ROUND_PARTS_MAX
        for batch in others:
            engine.settle(batch)


def test_those_who_wait_take_turns_and_so_do_the_partitions_of_each(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d", round_files_max=1) as engine:
        names = ["busy", "a-1", "a-2", "a-3", "b-1", "b-2"]
        for name in names:
            engine.append([b"made"], name)
        done: list[str] = []
        batches = {}

        class Told:
            def round_done(self) -> None:
                done.extend(n for n, batch in batches.items() if batch.state == COMMITTED and n not in done)

        waiters = {"busy": Told(), "a": Told(), "b": Told()}
        for name in names:
            batches[name] = engine.partition(name).append([b"x"], waiter=waiters[name.partition("-")[0]])
        for batch in batches.values():
            engine.settle(batch)
        assert done == ["busy", "a-1", "b-1", "a-2", "b-2", "a-3"]


def test_a_round_has_not_too_many_batches_of_those_who_number_them(tmp_path: Path) -> None:
    """Each is noted by the owner in the turn that ends the round."""
    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        partition = engine.partition()
        engine.settle(partition.append([b"made"]))
        counters = engine.log.committer.counters
        with held(files, "write", ".log") as reached:
            partition.append([b"first"])
            engine.inbox.run_until(reached.is_set)
            rounds = counters.rounds
            for number in range(5000):
                writer = partition.writer(50)
                writer.produce(number, 0, 0)
                first_seq = writer.next_seq
                assert writer.put(b"x", 0, 1)
                write_batch = partition.appended(None, 1)
                partition.producers.appended(Producer(number, 0, 0), 1, first_seq, write_batch)
        engine.settle(write_batch)
        assert counters.bytes < engine.log.config.round_bytes_max, "by their bytes they would be in one"
        assert counters.rounds - rounds > 2, "the one under way, and more than one"

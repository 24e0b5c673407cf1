"""Metrics: names and values of a scrape."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import TopicConfig
from engine.histogram import Histogram
from netserver.admin import metrics as metrics_module
from netserver.admin.globs import matcher
from netserver.admin.metrics import Metrics, Rounds, histogram
from netserver.figg.codec import Attach, Attached
from netserver.shell.counters import Counters
from netserver.testing import running
from tests.echo import ALONE, Echo, frame, run, until
from tests.engine_log import EngineLog, segments
from tests.figg_support import Place, with_server


def samples(content: bytes) -> dict[str, float]:
    """``name{labels}`` -> value."""
    found = {}
    for family in text_string_to_metric_families(content.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_histogram_buckets_are_cumulative() -> None:
    source = Histogram((1.0, 4.0))
    for value in (0.5, 1.0, 2.0, 5.0):
        source.observe(value)
    source.observe(3.0, 10)
    family = histogram("x", "X.", (), [((), source)])
    values = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert values == {"1": 2, "4": 13, "+Inf": 14, "quintlog_x_count": 14, "quintlog_x_sum": 38.5}


def test_rounds_are_taken_once() -> None:
    rounds, source = Rounds(), [(1, 100, 1, 0.001), (5, 500, 2, 0.002)]
    rounds.take(source)
    rounds.take(source)
    assert source == []
    assert sum(rounds.records.counts) == 2
    assert rounds.size_bytes.total == 600


def test_a_scrape_counts_what_happened() -> None:
    async def main() -> None:
        echo = Echo()
        async with running(settings=ALONE, protocols={"echo": echo}) as server:
            metrics = Metrics(server)
            before = samples(await metrics.render())
            assert before["quintlog_records_published_total{protocol=echo}"] == 0
            assert not any(name.startswith("quintlog_publish_ack_seconds_count") for name in before)
            address = server.addresses["echo"]
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(frame(b"s1") * 10 + frame(b"?"))
            writer.write_eof()
            await reader.read(-1)
            writer.close()
            await until(lambda: not server.shell.connections)
            after = samples(await metrics.render())
            assert after["quintlog_records_published_total{protocol=echo}"] == 20
            assert after["quintlog_publish_ack_seconds_count{durability=always,protocol=echo}"] == 20
            assert after["quintlog_protocol_errors_total{kind=command,protocol=echo}"] == 1
            assert after["quintlog_connections_total{protocol=echo}"] == 1
            assert after["quintlog_connections{protocol=echo}"] == 0
            assert after["quintlog_connections_closed_total{protocol=echo,reason=protocol}"] == 1
            assert after["quintlog_commit_rounds_total{result=ok}"] >= 1
            assert after["quintlog_round_records_sum{}"] == 20
            assert after["quintlog_topics{}"] == 1
            assert after["process_open_fds{}"] > 5
            for environment in ("state", "index"):
                assert after[f"quintlog_lmdb_used_bytes{{env={environment}}}"] > 0
            assert after["quintlog_subscriptions{}"] == 0

    run("uvloop", main())


def test_subscriptions_are_gone_through_in_slices() -> None:
    async def main() -> None:
        async with running(settings=ALONE, protocols={"echo": Echo()}) as server:
            log, metrics = server.log, Metrics(server)
            partition = log.partition(log.catalog.get_or_create(b"t"), 0)
            opened = asyncio.Event()
            partition.when_open(opened.set)
            await opened.wait()
            for after_seq in range(40):
                log.cursors.create("blipmq", partition, after_seq=after_seq)
            turns = 0

            def count() -> None:
                nonlocal turns
                turns += 1
                loop.call_soon(count)

            loop = asyncio.get_running_loop()
            loop.call_soon(count)
            log.slices.is_over = lambda: True  # type: ignore[method-assign]  (every item in a turn of its own)
            await metrics.collector.cursors.measure()
            assert turns >= 40
            assert metrics.collector.cursors.lag == {"blipmq": 0}

    run("uvloop", main())


def test_what_is_stored_is_counted_whether_anybody_uses_it_or_not(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "data", topic=TopicConfig(segment_bytes=64 << 10)) as engine:
        for _ in range(6):
            engine.append([bytes(30_000)], topic="old")
        engine.append([b"x"], topic="other")
    (tmp_path / "data" / "topics" / "1" / "0" / "notes.txt").write_text("not ours")

    async def test(place: Place) -> None:
        metrics = Metrics(place.server)

        async def stored() -> tuple[float, float]:
            found = samples(await metrics.render())
            return found["quintlog_segments{}"], found["quintlog_stored_bytes{}"]

        def in_files() -> tuple[int, int]:
            paths = [*segments(tmp_path / "data", 1), *segments(tmp_path / "data", 2)]
            return len(paths), sum(path.stat().st_size for path in paths)

        assert in_files()[0] > 3
        assert await stored() == in_files(), "nothing is open yet"
        peer = await place.peer()
        peer.publish(b"other", 0, b"y", bytes(50_000), bytes(50_000))
        await peer.acked(2)
        assert await stored() == in_files(), "one is open"
        await peer.history(b"old", 6)
        assert await stored() == in_files(), "both are"
        assert await stored() == in_files()

    with_server(test, data_dir=tmp_path / "data")


def test_times_of_reading_delivering_and_committing() -> None:
    async def test(place: Place) -> None:
        metrics = Metrics(place.server)
        peer, reader = await place.peer(), await place.peer()
        peer.publish(b"u", 0, b"x")
        await peer.acked(0)
        before = samples(await metrics.render())
        assert before["quintlog_state_commit_seconds_count{}"] >= 1, "the topic was made"
        assert before["quintlog_unsynced_age_seconds{}"] == 0
        assert not any(name.startswith("quintlog_delivery_delay_seconds") for name in before)
        reader.send(Attach(b"t", 0))
        await reader.expect(Attached)
        partition = place.partition(b"t")
        for number in range(40):
            await until(lambda: bool(partition.readers))
            peer.publish(b"t", number + 1, b"x", b"y")
            await peer.acked(number + 2)
        await reader.read(b"t", 80)
        after = samples(await metrics.render())
        assert after["quintlog_delivery_delay_seconds_count{protocol=figg}"] == 80
        assert after["quintlog_delivery_delay_seconds_sum{protocol=figg}"] > 0
        assert after["quintlog_read_seconds_count{source=memory}"] >= 32, "every 16th of at least 40 is timed"
        assert after["quintlog_read_seconds_sum{source=memory}"] > 0
        late = await place.peer()
        await late.history(b"t", 80)
        again = samples(await metrics.render())
        assert again["quintlog_delivery_delay_seconds_count{protocol=figg}"] == 80, "history is not live"

    with_server(test)


def test_what_is_not_synced_yet_has_an_age() -> None:
    async def test(place: Place) -> None:
        metrics = Metrics(place.server)
        peer = await place.peer()
        peer.publish(b"t", 0, b"x")
        await peer.acked(0)
        first = samples(await metrics.render())["quintlog_unsynced_age_seconds{}"]
        second = samples(await metrics.render())["quintlog_unsynced_age_seconds{}"]
        assert 0 < first < second

    with_server(test, {"topics": {"durability": "interval", "sync_interval_ms": "30s"}})


def test_topics_are_bounded_and_the_rest_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "METRICS_TOPICS", 2)

    async def main() -> None:
        async with running(settings=ALONE) as server:
            metrics = Metrics(server)
            for name in (b"a", b"b", b"c", b"d"):
                partition = server.log.partition(server.log.catalog.get_or_create(name))
                partition.append([b"value"])
            done = asyncio.Event()
            server.log.drain(done.set)
            await done.wait()
            found = samples(await metrics.render_topics(matcher(None), []))
            assert found["quintlog_topic_next_offset{partition=0,topic=a}"] == 2
            assert found["quintlog_topic_records_ever{partition=0,topic=a}"] == 1
            assert found["quintlog_topic_first_offset{partition=0,topic=b}"] == 1
            assert "quintlog_topic_next_offset{partition=0,topic=c}" not in found
            one = found["quintlog_topic_bytes{partition=0,topic=a}"]
            assert found["quintlog_topic_bytes{partition=,topic=_other}"] == 2 * one
            found = samples(await metrics.render_topics(matcher("[cd]"), ["quintlog_topic_bytes"]))
            assert set(found) == {
                "quintlog_topic_bytes{partition=0,topic=c}",
                "quintlog_topic_bytes{partition=0,topic=d}",
            }

    run("uvloop", main())


def test_names_and_texts_follow_the_rules_of_prometheus() -> None:
    contents: list[bytes] = []

    async def main() -> None:
        async with running(settings=ALONE, protocols={"echo": Echo()}) as server:
            counters: Counters = server.counters["echo"]
            counters.skipped["frame_size"] += 1
            counters.delivery_delay.observe(0.1)
            counters.ack_seconds["always"].observe(0.1)
            contents.append(await Metrics(server).render())

    run("uvloop", main())
    (content,) = contents
    for family in text_string_to_metric_families(content.decode()):
        assert family.documentation.endswith((".", ")")), family.name
        assert re.fullmatch(r"(quintlog|process)_[a-z_]+", family.name)
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "metrics"], input=content, check=True, timeout=30)

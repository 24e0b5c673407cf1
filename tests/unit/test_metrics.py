"""Metrics: names and values of a scrape."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from netserver import metrics as metrics_module
from netserver.counters import Counters, Histogram
from netserver.metrics import Metrics, Rounds, histogram
from netserver.testing import running
from tests.echo import ALONE, Echo, frame, run, until


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
            found = samples(await metrics.render_topics("*", []))
            assert found["quintlog_topic_next_offset{partition=0,topic=a}"] == 2
            assert found["quintlog_topic_first_offset{partition=0,topic=b}"] == 1
            assert "quintlog_topic_next_offset{partition=0,topic=c}" not in found
            one = found["quintlog_topic_bytes{partition=0,topic=a}"]
            assert found["quintlog_topic_bytes{partition=,topic=_other}"] == 2 * one
            found = samples(await metrics.render_topics("[cd]", ["quintlog_topic_bytes"]))
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

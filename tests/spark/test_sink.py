"""Writing from Spark: columns, options, what is refused and how it is told, a server that was away."""

from __future__ import annotations

import os
import re
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver.testing import ServerProcess, server
from tests.spark.conftest import require_spark
from tests.unit.netserver.admin.test_staged_commits import stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_COLUMNS = (
    "cast('k' as binary) key",
    "cast(id as string) value",
    "concat('t', id % 2) topic",
    "cast(id % 3 as int) partition",
    "timestamp_millis(1700000000000 + id) timestamp",
    "array(struct('name' as key, cast('h' as binary) as value)) headers",
)
VALUE = "cast(id as string) value"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require_spark()
    with server(tmp_path_factory.mktemp("sink") / "data") as running:
        yield running


def write(frame: Any, process: ServerProcess, **options: str) -> None:
    frame.write.format("quintlog").mode("append").options(**options).save(str(process.data_dir))


def test_all_columns(spark: SparkSession, process: ServerProcess) -> None:
    for name in ("t0", "t1"):
        process.admin("POST", "/v1/topics", {"name": name, "partitions": 3})
    write(spark.range(30).selectExpr(*ALL_COLUMNS), process)
    for number in range(30):
        found = stored(process.data_dir, b"t%d" % (number % 2), number % 3)
        record = next(record for record in found if record.value == b"%d" % number)
        assert (record.key, record.headers, record.timestamp_ms) == (b"k", (b"name", b"h"), 1_700_000_000_000 + number)
    assert sum(len(stored(process.data_dir, name, part)) for name in (b"t0", b"t1") for part in range(3)) == 30
    assert not os.listdir(process.data_dir / "staged")


def test_a_batch_is_written_once_by_its_name(spark: SparkSession, process: ServerProcess) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) value")
    where = {"server": process.admin_url, "token": process.token, "topic": "once"}
    for batch in ("1", "1", "2", "1"):
        write(frame, process, **where, queryId="nightly load", batchId=batch)
    assert len(stored(process.data_dir, b"once")) == 20
    assert process.admin("GET", "/v1/commits/nightly%20load")["batch"] == 2
    assert not os.listdir(process.data_dir / "staged")


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, process: ServerProcess, tmp_path: Path) -> None:
    path = str(process.data_dir)

    def copy() -> None:
        rows = spark.readStream.format("quintlog").option("subscribe", "from").option("startingOffsets", "earliest")
        sink = rows.load(path).writeStream.format("quintlog").option("topic", "to")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", path)
        sink.trigger(availableNow=True).start().awaitTermination()

    for first in (0, 100):
        write(spark.range(first, first + 100).selectExpr("cast(id as string) value"), process, topic="from")
        copy()
    assert sorted(int(record.value) for record in stored(process.data_dir, b"to")) == list(range(200))


REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no topic": ([VALUE], {}, "option topic"),
    "unknown column": ([VALUE, "id"], {"topic": "x"}, "cannot write a column id bigint"),
    "no value": (["cast(id as string) key"], {"topic": "x"}, "the column value is missing"),
    "null": (["cast(null as string) value"], {"topic": "x"}, "row 0 of this task has no value (null)"),
    "unknown option": ([VALUE], {"topic": "x", "subscribe": "y"}, "unknown option 'subscribe'"),
    "token": ([VALUE], {"topic": "x", "token": "wrong"}, "unauthorized"),
    "partition": ([VALUE, "7 partition"], {"topic": "x"}, "unknown_topic"),  # none is made for it
    "long key": ([VALUE, "repeat('k', 256) key"], {"topic": "x"}, "a key of 256 bytes"),
    "no server": (
        [VALUE],
        {"topic": "x", "server": "http://127.0.0.1:9", "retryTimeout": "100ms"},
        "gave up after 0.1 s",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_told(spark: SparkSession, process: ServerProcess, case: str) -> None:
    columns, options, expected = REFUSED[case]
    with pytest.raises(Exception, match=re.escape(expected)):
        write(spark.range(1).selectExpr(*columns), process, **options)
    assert not stored(process.data_dir, b"x")


def test_overwriting_is_refused(spark: SparkSession, process: ServerProcess) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="only appended to"):
        frame.write.format("quintlog").mode("overwrite").option("topic", "x").save(str(process.data_dir))


def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink.client import Client
    from tools.spark.sink.options import parse_sink
    from tools.spark.sink.rows import files_of

    rows = pa.record_batch({"value": [b"one", b"two"]})
    with server(tmp_path / "data") as process:
        client = Client(parse_sink({"path": str(process.data_dir)}).place)
        ((content, count),) = files_of(iter([rows]), "t", 1 << 20)
        name = client.stage(content)
        process.kill()
        again = threading.Timer(0.5, process.start)
        again.start()
        try:
            assert client.commit("w", 0, [name])["records"] == count == 2
        finally:
            again.join()
        process.kill()
        process.start()  # on another port: the directory tells
        assert client.commit("w", 0, [name])["repeated"]
        client.close()
        assert [record.value for record in stored(process.data_dir)] == [b"one", b"two"]


def test_a_directory_without_a_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require_spark()
    from tools.spark.sink import client as sink_client
    from tools.spark.sink.options import parse_sink

    def stage(path: Path, **options: str) -> None:
        sink_client.Client(parse_sink({"path": str(path), "retryTimeout": "1h"} | options).place).stage(b"")

    with pytest.raises(sink_client.SinkError, match="there is no such directory"):  # at once
        stage(tmp_path / "tpyo")
    with pytest.raises(sink_client.SinkError, match="is no data directory"):
        stage(tmp_path)
    with server(tmp_path / "data") as process:
        process.kill()
        monkeypatch.setattr(sink_client, "SINK_SILENT_S", 0.0)
        with pytest.raises(sink_client.SinkError, match=f"no server is running on {process.data_dir}"):
            stage(process.data_dir, retryTimeout="300ms")
    assert [record.getMessage() for record in caplog.records] == [
        f"the server of {process.data_dir}: no server is running on {process.data_dir}; "
        "trying on for 0.3 s in all (option retryTimeout)"
    ]


def test_another_server_where_the_first_one_was(tmp_path: Path) -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink.client import Client
    from tools.spark.sink.options import parse_sink
    from tools.spark.sink.rows import files_of

    ((content, _),) = files_of(iter([pa.record_batch({"value": [b"one"]})]), "t", 1 << 20)
    with server(tmp_path / "data") as process:
        client = Client(parse_sink({"path": str(process.data_dir), "retryTimeout": "20s"}).place)
        client._connected()  # it knows where the server is
        host, port = process.address("admin")
        process.kill()
        with server(tmp_path / "other", {"admin": {"listen": f"{host}:{port}"}}) as other:
            again = threading.Timer(0.5, process.start)
            again.start()
            try:
                assert client.stage(content)
            finally:
                again.join()
                client.close()
            assert not list(other.data_dir.glob("staged/*"))
            assert len(os.listdir(process.data_dir / "staged")) == 1


def test_an_attempt_that_lost_the_race_counts_for_nothing(tmp_path: Path) -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink import writer as sink
    from tools.spark.sink.options import parse_sink

    rows = pa.record_batch({"value": [b"one", b"two"]})
    with server(tmp_path / "data") as process:
        options = parse_sink({"path": str(process.data_dir), "topic": "t"})
        won, lost = (sink.stage(iter([rows]), options, "query", 0) for _ in range(2))
        sink.commit([None, won], options, 0)
        sink.abort([won, lost], options)  # as after a commit whose answer got lost
        assert [record.value for record in stored(process.data_dir)] == [b"one", b"two"]
        sink.commit([sink.stage(iter([rows]), options, "query", 0)], options, 0)
        assert len(stored(process.data_dir)) == 2
        assert not os.listdir(process.data_dir / "staged")


def test_a_task_that_fails_drops_what_it_has_staged(tmp_path: Path) -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink import writer as sink
    from tools.spark.sink.options import parse_sink

    rows = [pa.record_batch({"value": pa.array(values, pa.binary())}) for values in ([b"x" * 100] * 20, [None])]
    with server(tmp_path / "data") as process:
        options = parse_sink({"path": str(process.data_dir), "topic": "t", "stageBytes": "1000"})
        with pytest.raises(sink.SinkError, match="row 20 of this task has no value"):
            sink.stage(iter(rows), options, "query", 0)
        assert not os.listdir(process.data_dir / "staged")


def test_the_server_is_killed_between_two_parts_of_a_batch(tmp_path: Path) -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink.client import Client
    from tools.spark.sink.options import parse_sink
    from tools.spark.sink.rows import files_of

    values = [b"%d " % number + b"x" * 1_000_000 for number in range(80)]  # more than a transaction holds
    rows = [pa.record_batch({"value": [value]}) for value in values]
    with server(tmp_path / "data") as process:
        client = Client(parse_sink({"path": str(process.data_dir)}).place)
        names = [client.stage(content) for content, _ in files_of(iter(rows), "t", 8 << 20)]
        found: list[dict[str, Any]] = []
        commit = threading.Thread(target=lambda: found.append(client.commit("w", 0, names)))
        commit.start()
        while not found and not _parts(process):
            commit.join(0.001)
        process.kill()
        process.start()
        commit.join()
        again = client.commit("w", 0, names[::-1])
        client.close()
        assert (again["complete"], again["repeated"], again["records"], again["parts"]) == (True, True, len(values), 2)
        assert [record.value for record in stored(process.data_dir)] == values
        assert not os.listdir(process.data_dir / "staged")


def _parts(process: ServerProcess) -> int:
    """Parts of the batch of ``w`` that are in the log."""
    try:
        return int(process.admin("GET", "/v1/commits/w")["parts"])
    except urllib.error.HTTPError:
        return 0


def test_files_end_at_their_size() -> None:
    require_spark()
    import pyarrow as pa

    from tools.spark.sink.rows import files_of

    rows = pa.record_batch({"value": [b"x" * 100] * 25})
    found = list(files_of(iter([rows, rows]), "t", 1000))
    assert sum(count for _, count in found) == 50
    assert all(len(content) < 1200 for content, _ in found)
    assert len(found) == 5


WRONG_OPTIONS = {
    "name the server": {},
    "token is missing": {"server": "http://127.0.0.1:9180"},
    "expected an address": {"server": "127.0.0.1:9180", "token": "t"},
    "retryTimeout is": {"path": "d", "retryTimeout": "soon"},
    "stageBytes is": {"path": "d", "stageBytes": "0"},
    "name that, too": {"path": "d", "batchId": "1"},
}


@pytest.mark.parametrize("text", WRONG_OPTIONS)
def test_options_that_are_refused(text: str) -> None:
    from tools.spark.sink.options import parse_sink
    from tools.spark.source.options import OptionError

    with pytest.raises(OptionError, match=text):
        parse_sink(WRONG_OPTIONS[text])


def test_a_stream_has_an_id_of_its_own() -> None:
    from tools.spark.sink.options import parse_sink
    from tools.spark.source.options import OptionError

    with pytest.raises(OptionError, match="a stream keeps its own"):
        parse_sink({"path": "d", "queryId": "q"}, streaming=True)

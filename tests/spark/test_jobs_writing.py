"""Jobs that write, through a real server: every record once, in order, whatever is killed and repeated."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netserver import blipmq, tank
from netserver.testing import ServerProcess, server
from tests.spark.conftest import require_spark
from tests.spark.test_jobs import orders, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
DEAD_LETTERS = {"max_retries": "1", "retry_backoff_ms": "1", "dead_letter_suffix": ".dead"}
Row = tuple[Any, ...]


class Jobs:
    """Runs jobs on a server's directory."""

    def __init__(self, spark: SparkSession, process: ServerProcess, place: Path, capsys: Any) -> None:
        self.spark, self.process, self.place, self.capsys = spark, process, place, capsys

    def run(self, name: str, *arguments: str) -> dict[str, Any]:
        self.capsys.readouterr()
        module = import_module(f"tools.spark.jobs.{name}")
        assert module.main(["--data-dir", str(self.process.data_dir), *arguments]) == 0
        report: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return report

    def rows(self, topic: str, process: ServerProcess | None = None) -> list[Row]:
        """Partition, key, value, headers, time in ms of all records of a topic, in order."""
        reader = self.spark.read.format("quintlog").option("subscribe", topic).option("includeHeaders", "true")
        frame = reader.load(str((process or self.process).data_dir)).orderBy("partition", "offset")
        return [
            (row.partition, row.key and bytes(row.key), bytes(row.value), headers_of(row), row.ms)
            for row in frame.selectExpr("*", "unix_millis(timestamp) ms").collect()
        ]


def headers_of(row: Any) -> list[tuple[str, bytes]]:
    return [(header.key, bytes(header.value)) for header in row.headers or ()]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require_spark()
    with server(tmp_path_factory.mktemp("writing") / "data", {"blipmq": DEAD_LETTERS}) as found:
        for first in range(0, 300, 100):
            publish(found, "orders", orders(first, 100))
        publish(found, "orders", [{"value": "last", "headers": [{"name": "n", "value_base64": "/w=="}]}])
        yield found


@pytest.fixture
def jobs(spark: SparkSession, process: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Jobs:
    return Jobs(spark, process, tmp_path, capsys)


# --- replay


def test_replay_of_a_range(jobs: Jobs, tmp_path: Path) -> None:
    asked = ("--topic", "orders", "--into", "copy", "--progress", str(tmp_path / "p"), "--batch-records", "60")
    assert jobs.run("replay", "--from", "51", *asked)["records"] == 251
    assert jobs.rows("copy") == jobs.rows("orders")[50:]
    assert jobs.rows("copy")[-1][3] == [("n", b"\xff")]
    publish(jobs.process, "orders", orders(300, 1))
    assert jobs.run("replay", "--from", "51", *asked)["records"] == 0
    assert len(jobs.rows("copy")) == 251


@pytest.mark.parametrize("is_behind", [False, True])
def test_replay_that_breaks_off(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool) -> None:
    """Before the server has a batch, and behind it, when nobody heard of that any more."""
    from tools.spark.jobs import sending

    send, sends, into = sending.send, iter(range(100)), f"broken-{is_behind}"
    asked = ("--topic", "orders", "--to", "301", "--into", into, "--progress", str(tmp_path / "p"))

    def failing(*arguments: Any) -> int:
        fails = next(sends) == 1
        sent = send(*arguments) if not fails or is_behind else 0
        if fails:
            raise KeyboardInterrupt
        return sent

    monkeypatch.setattr(sending, "send", failing)
    with pytest.raises(KeyboardInterrupt):
        jobs.run("replay", *asked, "--batch-records", "100")
    assert len(jobs.rows(into)) == (200 if is_behind else 100)
    assert jobs.run("replay", *asked, "--batch-records", "100")["records"] == (100 if is_behind else 200)
    assert jobs.rows(into) == jobs.rows("orders")[:300]


def test_replay_to_another_server(jobs: Jobs, tmp_path: Path) -> None:
    async def clicks() -> None:
        async with tank.connect("{}:{}".format(*jobs.process.address("tank"))) as client:
            await client.create_topic("clicks", partitions=2)
            for partition in (0, 1):
                await client.publish_many("clicks", [b"%d" % n for n in range(50)], partition=partition)

    asyncio.run(asyncio.wait_for(clicks(), 60))
    with server(tmp_path / "other") as other:
        token = ("--token-file", str(other.data_dir / "admin.token"), "--progress", str(tmp_path / "p"))
        report = jobs.run("replay", "--topic", "clicks", "--server", other.admin_url, *token)
        other.kill()  # what is answered is on disk
        assert report["records"] == 100
        assert jobs.rows("clicks", other) == jobs.rows("clicks")


def test_a_server_that_restarts_is_waited_for(process: ServerProcess) -> None:
    require_spark()
    import threading

    from tools.spark.jobs.sending import Server

    found = Server(process.admin_url, process.token)
    process.kill()
    restarting = threading.Timer(0.5, process.restart)
    restarting.start()
    assert found.call("GET", "/v1/status")["ready"] in (True, False)
    restarting.join()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--into", "x"), "--progress FILE is missing"),
        (("--progress", "p"), "name --into TOPIC or --server URL"),
        (("--progress", "p", "--into", "x", "--topic", "none"), "no topic none"),
    ],
)
def test_replay_that_cannot_be(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str
) -> None:
    from tools.logtool.lib.errors import Failure

    monkeypatch.chdir(jobs.place)
    with pytest.raises(Failure, match=text):
        jobs.run("replay", *arguments)


def test_progress_of_another_command(jobs: Jobs, tmp_path: Path) -> None:
    from tools.logtool.lib.errors import Failure

    asked = ("--topic", "orders", "--from", "-1", "--progress", str(tmp_path / "p"))
    jobs.run("replay", *asked, "--into", "one")
    with pytest.raises(Failure, match="belongs to another command"):
        jobs.run("replay", *asked, "--into", "two")


# --- compact


def test_compact(jobs: Jobs, tmp_path: Path) -> None:
    publish(jobs.process, "states", orders(0, 30))
    publish(jobs.process, "states", [{"key": "key 3", "value": ""}, {"value": "no key"}])
    asked = ("--topic", "states", "--progress", str(tmp_path / "p"), "--into", "latest")
    assert jobs.run("compact", *asked)["records"] == 6
    before = jobs.rows("states")
    assert jobs.rows("latest") == [row for row in before[23:30] if row[1] != b"key 3"]
    assert jobs.run("compact", *asked)["records"] == 0
    kept = ("--topic", "states", "--progress", str(tmp_path / "q"), "--into", "all")
    assert jobs.run("compact", *kept, "--keep-deleted")["records"] == 7
    assert jobs.rows("all")[-1] == (0, b"key 3", b"", [], before[30][4])


# --- dlq


def stored(process: ServerProcess, topic: str) -> int:
    """How many records a topic has."""
    try:
        details = process.admin("GET", f"/v1/topics/{topic}")["partition_details"]
    except urllib.error.HTTPError:
        return 0
    return int(details[0]["next_offset"]) - 1


def until_stored(process: ServerProcess, topic: str, count: int) -> None:
    end = time.monotonic() + 60
    while stored(process, topic) < count:
        assert time.monotonic() < end, "no dead letters"
        time.sleep(0.01)


async def give_up(process: ServerProcess, topic: str, values: list[bytes]) -> int:
    """Takes what a subscription brings and acknowledges none until all are dead letters; the subscription's id."""
    address = "{}:{}".format(*process.address("blipmq"))
    async with blipmq.connect(address) as client, client.subscribe(topic, qos=1) as subscription:
        await client.publish_many(topic, values)
        taking = asyncio.ensure_future(take(subscription))
        await asyncio.to_thread(until_stored, process, f"{topic}.dead", len(values))
        taking.cancel()
        return int(subscription.id)


async def take(subscription: Any) -> None:
    async for _ in subscription:
        pass


def test_dead_letters(jobs: Jobs, tmp_path: Path) -> None:
    one = asyncio.run(asyncio.wait_for(give_up(jobs.process, "jobs", [b"%d" % n for n in range(20)]), 60))
    asyncio.run(asyncio.wait_for(give_up(jobs.process, "mails", [b"mail"]), 60))
    report = jobs.run("dlq", "--topic", "*.dead")
    found = [(group["origin"], group["records"], group["deliveries"]) for group in report["groups"]]
    assert found == [("jobs", 20, 1), ("mails", 1, 1)]
    assert report["groups"][0]["samples"] == [[1, "0"], [2, "1"], [3, "2"]]
    assert sum(hour["records"] for hour in report["hours"]) == 21
    chosen = ("--topic", "*.dead", "--origin", "jo*", "--subscription", str(one))
    assert [group["records"] for group in jobs.run("dlq", *chosen)["groups"]] == [20]
    redrive = (*chosen, "--redrive", "--progress", str(tmp_path / "p"), "--batch-records", "8")
    before = jobs.rows("jobs")
    assert jobs.run("dlq", *redrive)["records"] == 20
    assert jobs.rows("jobs") == before * 2
    assert jobs.run("dlq", *redrive)["records"] == 0
    assert len(jobs.rows("mails")) == 1


# --- executors without an installation


def test_the_package_is_enough_for_executors(tmp_path: Path) -> None:
    require_spark()
    from tools.spark.package import write_package

    write_package(tmp_path / "quintlog.zip")
    code = """if True:
        import importlib, pkgutil, sys, tools.spark
        for found in pkgutil.walk_packages(tools.spark.__path__, "tools.spark."):
            importlib.import_module(found.name)
        ours = [module for name, module in sys.modules.items() if name.startswith(("engine", "netserver", "tools"))]
        print(len(ours), {module.__file__ for module in ours if "quintlog.zip" not in module.__file__})
    """
    environment = {"PYTHONPATH": str(tmp_path / "quintlog.zip"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, _, elsewhere = done.stdout.partition(" ")
    assert (int(count) > 50, elsewhere) == (True, "set()\n")

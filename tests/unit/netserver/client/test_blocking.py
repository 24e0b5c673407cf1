"""The blocking clients of all five protocols against a real server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.client import blocking
from netserver.errors import Closed, ConnectionFailed, Refused, Timeout
from netserver.testing import ServerProcess, server

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server(tmp_path_factory.mktemp("log") / "data") as running:
        yield running


def place(process: ServerProcess, protocol: str) -> str:
    return "{}:{}".format(*process.address(protocol))


def test_figg(process: ServerProcess) -> None:
    with blocking.connect("figg", place(process, "figg")) as client:
        client.publish("orders", b"0")
        client.publish_many("orders", [b"%d" % number for number in range(1, 50)])
        future = client.send("orders", b"50")
        assert future.result(10) is None
        client.flush()
        with client.subscribe("orders", start=0) as orders:
            assert orders.next(timeout=10).value == b"0"
            found = []
            for record in orders:
                found.append(int(record.value))
                if record.value == b"30":
                    break
            assert found == list(range(1, 31))
            assert orders.position == 31
            batch = next(iter(orders.batches(max_records=5)))
            assert batch.values == [b"%d" % number for number in range(31, 36)]
        with client.subscribe("silent") as silent, pytest.raises(Timeout):
            silent.next(timeout=0.01)
    with pytest.raises(Closed):
        client.publish("orders", b"late")
    client.close()


def test_tank_and_its_errors(process: ServerProcess) -> None:
    client = blocking.connect("tank", place(process, "tank"))
    with pytest.raises(Refused):
        client.publish("unmade", b"x")
    client.create_topic("clicks", partitions=2)
    client.publish("clicks", b"v", partition=1, key=b"k")
    record = client.subscribe("clicks", partition=1, start=0).next(timeout=10)
    assert (record.key, record.value) == (b"k", b"v")
    client.close()
    client.close()


def test_blipmq_acknowledges(process: ServerProcess) -> None:
    with blocking.connect("blipmq", place(process, "blipmq")) as client:
        subscription = client.subscribe("jobs")
        client.publish_many("jobs", [b"a", b"b"])
        for value, message in zip((b"a", b"b"), subscription, strict=False):
            assert message.value == value
            message.ack()
        subscription.close()


def test_fujin_transaction_and_batches(process: ServerProcess) -> None:
    ca = process.data_dir / "fujin-certificate.pem"
    with blocking.connect("fujin", place(process, "fujin"), ca=ca) as client:
        with client.transaction() as transaction:
            transaction.publish("paid", b"17")
            transaction.publish("audit", b"17 paid")
        with client.subscribe("paid", mode="pull") as paid:
            for batch in paid.batches():
                (message,) = batch
                assert message.value == b"17"
                batch.ack(except_for=[message])
                message.ack()
                break
        with contextlib.suppress(ZeroDivisionError), client.transaction() as transaction:
            transaction.publish("paid", b"18")
            raise ZeroDivisionError
    assert process.admin("GET", "/v1/topics/paid")["partition_details"][0]["next_offset"] == 2


def test_reliably(process: ServerProcess, tmp_path: Path) -> None:
    with blocking.connect("reliably", place(process, "reliably"), params={"count": 5}) as numbers:
        assert [message.id for message in numbers] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("protocol", ["figg", "tank", "blipmq", "fujin"])
def test_a_forked_child_is_told_and_the_parent_goes_on(process: ServerProcess, protocol: str) -> None:
    options = {"ca": process.data_dir / "fujin-certificate.pem"} if protocol == "fujin" else {}
    with blocking.connect(protocol, place(process, protocol), **options) as client:
        if protocol == "tank":
            client.create_topic("forked", exist_ok=True)
        client.publish("forked", b"before")
        child = os.fork()
        if not child:
            signal.alarm(30)  # it may not wait for ever, whatever happens
            with contextlib.suppress(Closed):
                client.publish("forked", b"by the child")
                os._exit(1)
            client.close()
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        client.publish("forked", b"behind")


def test_nobody_there_and_no_such_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionFailed, match="nothing listens there"):
        blocking.connect("figg", f"127.0.0.1:{port}")
    with pytest.raises(ValueError, match="expected one of figg, tank"):
        blocking.connect("fig")
    assert "quintlog-client" not in {thread.name for thread in threading.enumerate()}

"""Every client says so when nothing listens where it dials, or something that does not speak its protocol."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from netserver import figg, reliably
from netserver.client import blocking
from netserver.client.probe import Proof
from netserver.errors import Closed, ConnectionFailed, ProtocolError, WrongServer
from netserver.testing import ServerProcess, running
from tests.echo import until
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

TCP = ("figg", "tank", "blipmq", "reliably")
NAMES = {"figg": "Figg", "tank": "TANK", "blipmq": "BlipMQ", "reliably": "a JSON stream (reliably)", "fujin": "Fujin"}
SPOKEN = {**NAMES, "admin": "HTTP"}
OPTIONS: dict[str, dict[str, Any]] = {"blipmq": {"api_key": "secret"}, "reliably": {"params": {"count": 2}}}
LIMIT_S = 0.3


async def use(protocol: str, address: str, **options: Any) -> None:
    """Connect, and ask for something."""
    module = import_module(f"netserver.{protocol}")
    settings = {**OPTIONS.get(protocol, {}), "dial_timeout_s": LIMIT_S, "backoff": lambda failures: 0.01, **options}
    async with module.connect(address, **settings) as client:
        if protocol == "reliably":
            await client.next(20)
        else:
            await client.publish("orders", b"one")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return "{}:{}".format(*server.getsockname())


def test_the_port_of_another_protocol() -> None:
    async def main() -> None:
        async with running() as server:

            async def one(protocol: str, other: str) -> None:
                with pytest.raises(ConnectionFailed) as caught:
                    await use(protocol, str(server.addresses[other]))
                text = str(caught.value)
                where = server.addresses[other]
                assert text == f"{where} answers, but not as {NAMES[protocol]}: it speaks {SPOKEN[other]}"

            others = (*TCP, "admin")
            await asyncio.gather(*(one(mine, other) for mine in TCP for other in others if other != mine))

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("protocol", NAMES)
def test_nothing_listens(protocol: str, nobody: str) -> None:
    with pytest.raises(ConnectionFailed, match=f"{nobody}: connection refused: nothing listens there"):
        asyncio.run(use(protocol, nobody))


@pytest.mark.parametrize("protocol", TCP)
def test_a_port_that_says_nothing(protocol: str, silent: str) -> None:
    began = time.monotonic()
    with pytest.raises(WrongServer) as caught:
        asyncio.run(use(protocol, silent))
    assert str(caught.value).startswith(f"{silent} answers, but not as {NAMES[protocol]}; is it the port of another")
    assert "nothing came for 0.3 s" in str(caught.value)
    assert not caught.value.retryable
    assert time.monotonic() - began >= LIMIT_S


def test_a_topic_stream_that_brings_nothing_is_asked_again(silent: str) -> None:
    """A topic without new records is silent too: a stream of numbers tells the difference."""
    with pytest.raises(WrongServer):
        asyncio.run(use("reliably", silent, params={"topic": "orders", "offset": "latest"}))

    async def quiet() -> None:
        async with (
            running() as server,
            figg.connect(str(server.addresses["figg"])) as publisher,
        ):
            await publisher.publish("orders", b"before")
            latest = {"topic": "orders", "offset": "latest"}
            address = str(server.addresses["reliably"])
            async with reliably.connect(address, params=latest, dial_timeout_s=LIMIT_S) as orders:
                await until(lambda: orders.proof.given)
                await publisher.publish("orders", b"one")
                assert (await orders.next(20)).data["value"] == "one"

    asyncio.run(quiet())


@pytest.mark.parametrize("protocol", NAMES)
def test_without_asyncio(protocol: str, silent: str, nobody: str) -> None:
    options = {**OPTIONS.get(protocol, {}), "dial_timeout_s": LIMIT_S}

    def ask(address: str) -> None:
        with blocking.connect(protocol, address, **options) as client:
            if protocol == "reliably":
                client.next(20)
            else:
                client.publish("orders", b"one")

    with pytest.raises(ConnectionFailed, match="nothing listens"):
        ask(nobody)
    if protocol in TCP:
        with pytest.raises(WrongServer, match="not as"):
            ask(silent)


def test_a_subscription_at_another_port(silent: str) -> None:
    async def main() -> None:
        client = await figg.connect(silent, dial_timeout_s=LIMIT_S)
        async with client.subscribe("orders", start=figg.EARLIEST) as orders:
            await orders.next(20)

    with pytest.raises(WrongServer):
        asyncio.run(main())


def test_publish_names_the_address(logtool: Logtool, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_bytes(b"one\n")
    with ServerProcess(tmp_path / "data") as server:
        for via, other in (("figg", "tank"), ("figg", "admin"), ("tank", "figg"), ("blipmq", "tank")):
            address = "{}:{}".format(*server.address(other))
            code, _, err = logtool("--timeout", "5", "publish", "orders", str(file), "--via", f"{via}={address}")
            assert code == 3
            assert err.startswith(f"logtool: {address} answers, but not as {NAMES[via]}: it speaks {SPOKEN[other]}\n")
            assert "--via PROTOCOL=HOST:PORT" in err


def test_what_shows_that_it_is_another_server() -> None:
    def fresh() -> Proof:
        return Proof("Figg", "host:1", 5)

    malformed = fresh().judge(ProtocolError("from host:1: frame too large"))
    assert str(malformed) == ("host:1 answers, but not as Figg; is it the port of another protocol? (frame too large)")
    assert fresh().judge(Closed("ours")) is None
    proof = fresh()
    assert proof.judge(ConnectionFailed("closed")) is None, "may be a restart"
    assert isinstance(proof.judge(ConnectionFailed("closed")), WrongServer)
    proof = fresh()
    proof.give()
    ends: list[Callable[[], Exception]] = [lambda: ProtocolError("x"), lambda: ConnectionFailed("x")]
    assert [proof.judge(end()) for end in ends * 3] == [None] * 6  # type: ignore[arg-type]

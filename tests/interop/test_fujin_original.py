"""Our client against the original's own server (Go), which stands in front of a broker in its memory.

Needs what ``test_fujin_go`` needs: QUINTLOG_FUJIN=DIRECTORY names a checkout of the original.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netserver import fujin
from netserver.errors import Refused
from tests.certificates import self_signed
from tests.interop.original_fujin import NEEDED, ONE_THREAD, built

TOPICS = ("write", "push", "auto", "nack", "left", "transactions", "silence", "shared")
MESSAGE_BYTES = 65536
"""The original ends its process over a longer one."""
COUNT = 2000
PING_MS = 200
STOP_S = 10

pytestmark = NEEDED


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("fujin_server", tmp_path_factory.mktemp("fujin_server"))


@contextmanager
def serving(program: Path, directory: Path) -> Iterator[tuple[str, Path]]:
    """(address, certificate file) of a running server."""
    certificate, key = self_signed(directory)
    command = [str(program), certificate, key, str(PING_MS), *TOPICS]
    with (
        (directory / "server.log").open("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=ONE_THREAD) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            while (found := re.search(r"addr=(\S+)", line)) is None:
                assert line, log.read()
                line = process.stdout.readline()
            yield found[1], Path(certificate)
            assert process.poll() is None, "the server has ended"
        finally:
            process.terminate()
            process.communicate(timeout=STOP_S)


@pytest.fixture(scope="module")
def original(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with serving(program, tmp_path_factory.mktemp("server")) as running:
        yield running


def client_of(original: tuple[str, Path]) -> fujin.Client:
    address, certificate = original
    return fujin.connect(address, ca=certificate, message_bytes_max=MESSAGE_BYTES)


async def values(subscription: fujin.Subscription, count: int, *, ack: bool = True) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await asyncio.wait_for(subscription.next(), 30)
        found.append(message.value)
        if ack:
            await message.ack()
    return found


def test_what_is_written_is_pulled_and_acknowledged_once(original: tuple[str, Path]) -> None:
    async def main() -> None:
        async with client_of(original) as client:
            sent = [b"%d " % number + b"x" * (number % 300) for number in range(COUNT)]
            sent += [b"y" * (MESSAGE_BYTES - 1), b"z" * MESSAGE_BYTES]
            await client.publish_many("write", sent)
            found: list[bytes] = []
            async with client.subscribe("write", mode="pull") as batches:
                async for batch in batches.batches(max_records=500):
                    found += [message.value for message in batch.records()]
                    await batch.ack()
                    if len(found) == len(sent):
                        break
            assert found == sent
            await client.publish("write", b"after")
            async with client.subscribe("write", mode="pull") as again:
                assert await values(again, 1) == [b"after"]

    asyncio.run(main())


@pytest.mark.parametrize("ack", ["manual", "auto"])
def test_what_is_written_is_pushed(original: tuple[str, Path], ack: str) -> None:
    topic = "push" if ack == "manual" else "auto"

    async def main() -> None:
        async with client_of(original) as client, client.subscribe(topic, ack=ack) as pushed:
            sent = [b"%d" % number for number in range(COUNT)]
            await client.publish_many(topic, sent)
            assert await values(pushed, COUNT, ack=ack == "manual") == sent

    asyncio.run(main())


def test_nack_brings_a_message_again(original: tuple[str, Path]) -> None:
    async def main() -> None:
        async with client_of(original) as client, client.subscribe("nack") as pushed:
            await client.publish("nack", b"message")
            for _ in range(3):
                message = await asyncio.wait_for(pushed.next(), 30)
                assert message.value == b"message"
                await message.nack()
            assert await values(pushed, 1) == [b"message"]

    asyncio.run(main())


def test_what_was_not_acknowledged_comes_again(original: tuple[str, Path]) -> None:
    async def main() -> None:
        sent = [b"%d" % number for number in range(10)]
        async with client_of(original) as client:
            await client.publish_many("left", sent)
            async with client.subscribe("left", mode="pull") as pulled:
                assert await values(pulled, 10, ack=False) == sent
            async with client.subscribe("left", mode="pull") as pulled:
                assert await values(pulled, 10) == sent

    asyncio.run(main())


def test_two_clients_share_a_topic(original: tuple[str, Path]) -> None:
    async def main() -> None:
        sent = [b"%d" % number for number in range(200)]
        found: list[bytes] = []
        complete = asyncio.Event()

        async def read() -> None:
            async with client_of(original) as client, client.subscribe("shared") as pushed:
                async for message in pushed:
                    await message.ack()
                    found.append(message.value)
                    if len(found) == len(sent):
                        complete.set()

        readers = [asyncio.create_task(read()) for _ in range(2)]
        async with client_of(original) as client:
            await client.publish_many("shared", sent)
            await asyncio.wait_for(complete.wait(), 30)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert sorted(found) == sorted(sent)

    asyncio.run(main())


def test_transactions(original: tuple[str, Path]) -> None:
    """What is committed comes whole and in its place, what is rolled back never.

    Without a writer id: two ids on one topic, the empty one among them, end the original's process.
    """

    async def main() -> None:
        async with client_of(original) as client:
            async with client.transaction() as kept:
                await kept.publish("transactions", b"1")
                await client.publish("transactions", b"0")  # not a part of it
                await kept.publish("transactions", b"2")
            dropped = client.transaction()
            await dropped.begin()
            await dropped.publish("transactions", b"never")
            with pytest.raises(Refused, match="writer can not be reuse in tx"):
                await dropped.publish("nowhere", b"never")
            await dropped.rollback()
            await client.publish("transactions", b"3")
            async with client.subscribe("transactions", mode="pull") as pulled:
                assert await values(pulled, 4) == [b"0", b"1", b"2", b"3"]

    asyncio.run(main())


def test_unknown_names(original: tuple[str, Path]) -> None:
    async def main() -> None:
        async with client_of(original) as client:
            with pytest.raises(Refused, match="writer not found"):
                await client.publish("nowhere", b"x")
            with pytest.raises(Refused, match="reader not found"):
                async with client.subscribe("nowhere") as subscription:
                    await subscription.next()
            await client.publish("write", b"the connection lives on")

    asyncio.run(main())


def test_a_silent_connection_answers_pings(original: tuple[str, Path]) -> None:
    async def main() -> None:
        async with client_of(original) as client:
            link = client.link
            await client.publish("silence", b"before")
            await asyncio.sleep(8 * PING_MS / 1000)  # what is tested is that nothing happens in this time
            await client.publish("silence", b"after")
            assert client.link is link, "it was not connected again"

    asyncio.run(main())


def test_a_stop_of_the_server(program: Path, tmp_path: Path) -> None:
    """STOP makes the client end its streams; what was answered is answered."""

    async def main() -> None:
        with serving(program, tmp_path) as original:
            client = client_of(original)
            await client
            await client.publish("write", b"x")
            subscription = client.subscribe("write", mode="pull")
            await subscription
            assert await values(subscription, 1) == [b"x"]
        await client.close()

    asyncio.run(main())

"""One topic, six protocols: what any publishes is read by all, with equal bytes and numbers; also at the limits."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from netserver import blipmq, errors, figg, fujin, reliably, tank
from netserver.config.settings import Address
from netserver.fujin import codec
from netserver.fujin.codec import Answer
from netserver.testing import Settings, running
from tests.fujin_peer import connect
from tests.kafka_peer import Peer, Record

WAIT_S = 60
RECORD_BYTES = 1 << 20
SIZES = (0, 1, 2, 254, 255, 256, 65_535, 65_536, RECORD_BYTES - 1, RECORD_BYTES)
KEY_BYTES = 255
SETTINGS: Settings = {
    "topics": {"record_bytes_max": RECORD_BYTES},
    "blipmq": {"retry_backoff_ms": "1min"},  # nothing comes twice while it is being read
    "fujin": {"message_bytes_max": RECORD_BYTES},
}


class Seen(NamedTuple):
    """A record as a reader sees it; what its protocol has no place for is None."""

    seq: int | None
    key: bytes | None
    value: bytes


class Kafka:
    """A client of Kafka's, by hand."""

    def __init__(self, address: Address) -> None:
        self.address = address

    async def __aenter__(self) -> Kafka:
        self.peer = await Peer.open(self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.close()

    async def publish(self, topic: str, value: bytes, key: bytes = b"") -> None:
        """Publish one record."""
        found = await self.peer.produce(topic, Record(value, key or None))
        if found["error"]:
            raise errors.Refused(found["error"], str(found["message"]))

    async def read(self, topic: str, count: int) -> list[Record]:
        """The first ``count`` records."""
        found: list[Record] = []
        peer = await Peer.open(self.address)
        while len(found) < count:
            found += await peer.records(topic, found[-1].offset + 1 if found else 1, wait_ms=1000)
        await peer.close()
        return found[:count]


class Clients:
    """A client for each protocol that publishes, and readers for all six and for the command."""

    def __init__(self, data_dir: Path, listening: dict[str, Address]) -> None:
        addresses = self.addresses = {name: str(address) for name, address in listening.items()}
        self.data_dir = data_dir
        self.fujin_at = listening["fujin"].host, listening["fujin"].port
        self.blipmq: Any = blipmq.connect(addresses["blipmq"], version=2)
        self.figg: Any = figg.connect(addresses["figg"])
        self.fujin: Any = fujin.connect(addresses["fujin"], ca=data_dir / "fujin-certificate.pem")
        self.kafka: Any = Kafka(listening["kafka"])
        self.tank: Any = tank.connect(addresses["tank"])

    async def publish(self, protocol: str, topic: str, value: bytes, key: bytes = b"") -> None:
        """Publish one record; with its key, where the protocol has one."""
        if protocol in WITH_KEYS:
            await getattr(self, protocol).publish(topic, value, key=key)
        else:
            await getattr(self, protocol).publish(topic, value)

    async def read(self, reader: str, topic: str, count: int) -> list[Seen]:
        """The first ``count`` records that a reader gets."""
        return list(await asyncio.wait_for(getattr(self, f"_read_{reader}")(topic, count), WAIT_S))

    async def _read_figg(self, topic: str, count: int) -> list[Seen]:
        async with self.figg.subscribe(topic, start=figg.EARLIEST) as records:
            return [Seen(one.offset, None, one.value) for one in [await records.next() for _ in range(count)]]

    async def _read_tank(self, topic: str, count: int) -> list[Seen]:
        async with self.tank.subscribe(topic, start=tank.EARLIEST) as records:
            return [Seen(one.seq, one.key, one.value) for one in [await records.next() for _ in range(count)]]

    async def _read_kafka(self, topic: str, count: int) -> list[Seen]:
        return [Seen(one.offset, one.key or b"", one.value or b"") for one in await self.kafka.read(topic, count)]

    async def _read_blipmq(self, topic: str, count: int) -> list[Seen]:
        async with self.blipmq.subscribe(topic, start=blipmq.EARLIEST) as messages:
            return [Seen(one.tag, None, one.value) for one in [await messages.next() for _ in range(count)]]

    async def _read_fujin(self, topic: str, count: int) -> list[Seen]:
        async with self.fujin.subscribe(topic, mode="pull") as messages:
            found = [await messages.next() for _ in range(count)]
            for message in found:
                await message.ack()
        return [Seen(int.from_bytes(one.id[4:], "big"), None, one.value) for one in found]

    async def _read_json(self, topic: str, count: int) -> list[Seen]:
        found = []
        parameters = {"topic": topic, "offset": "earliest", "count": count}
        async with reliably.connect(self.addresses["reliably"], params=parameters, ack_every=1) as session:
            async for message in session:
                found.append(_of_json(message.data))
        return found

    async def _read_logtool(self, topic: str, count: int) -> list[Seen]:
        return [_of_json(line) for line in (await self.cat(topic))[:count]]

    async def cat(self, topic: str) -> list[dict[str, Any]]:
        """What ``logtool cat`` prints."""
        command = [sys.executable, "-m", "tools.logtool", "--data-dir", str(self.data_dir), "cat", topic, "-o", "jsonl"]
        ended = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
        return [json.loads(line) for line in ended.stdout.splitlines()]


def _of_json(document: dict[str, Any]) -> Seen:
    def text(name: str) -> bytes:
        encoded = document.get(f"{name}_base64")
        return base64.b64decode(encoded) if encoded is not None else (document.get(name) or "").encode()

    return Seen(document["offset"], text("key"), text("value"))


PUBLISHERS = ("figg", "tank", "blipmq", "fujin", "kafka")
WITH_KEYS = ("tank", "blipmq", "kafka")
READERS = ("figg", "tank", "blipmq", "fujin", "kafka", "json", "logtool")


@asynccontextmanager
async def all_clients(data_dir: Path, settings: Settings = SETTINGS) -> AsyncIterator[Clients]:
    async with running(data_dir, settings=settings) as quintlog, AsyncExitStack() as stack:
        clients = Clients(data_dir, dict(quintlog.addresses))
        for name in PUBLISHERS:
            setattr(clients, name, await stack.enter_async_context(getattr(clients, name)))
        yield clients


def check(reader: str, found: list[Seen], expected: list[Seen]) -> None:
    assert [one.value for one in found] == [one.value for one in expected], reader
    for got, wanted in zip(found, expected, strict=True):
        assert got.seq in (None, wanted.seq), reader
        assert got.key is None or got.key == wanted.key, reader


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_what_one_publishes_all_read(tmp_path: Path, publisher: str) -> None:
    """Keys are kept where both protocols have a place for them."""
    has_keys = publisher in WITH_KEYS

    async def main() -> None:
        async with all_clients(tmp_path / "data") as clients:
            await clients.tank.create_topic("topic")
            expected = []
            for number in range(1, 31):
                value = (b"%d text", b"%d \xff\x00\n", "%d wörter".encode())[number % 3] % number
                key = b"key %d" % number if has_keys and number % 2 else b""
                await clients.publish(publisher, "topic", value, key)
                expected.append(Seen(number, key, value))
            for reader in READERS:
                check(reader, await clients.read(reader, "topic", len(expected)), expected)

    asyncio.run(main())


def test_all_at_once_into_one_topic(tmp_path: Path) -> None:
    """One order for everybody, in which each publisher's records keep theirs."""

    async def main() -> None:
        async with all_clients(tmp_path / "data") as clients:
            await clients.tank.create_topic("topic")

            async def publish(publisher: str) -> None:
                for number in range(100):
                    await clients.publish(publisher, "topic", b"%s %03d" % (publisher.encode(), number))

            live = [
                asyncio.create_task(clients.read(reader, "topic", 500)) for reader in READERS if reader != "logtool"
            ]
            await asyncio.gather(*map(publish, PUBLISHERS))
            orders = [await task for task in live]
            expected = await clients.read("logtool", "topic", 500)
            assert [one.seq for one in expected] == list(range(1, 501))
            for publisher in PUBLISHERS:
                own = [one.value for one in expected if one.value.startswith(publisher.encode())]
                assert own == [b"%s %03d" % (publisher.encode(), number) for number in range(100)]
            for reader, order in zip(READERS, orders, strict=False):
                check(reader, order, expected)

    asyncio.run(main())


def test_records_at_exactly_the_limits(tmp_path: Path) -> None:
    """The smallest, the largest, and those around each length field; a byte more is refused by each in its way."""

    async def main() -> None:
        async with all_clients(tmp_path / "data") as clients:
            await clients.tank.create_topic("topic")
            expected = []
            for size in SIZES:
                for publisher in PUBLISHERS:
                    if publisher == "fujin" and size == 0:
                        continue  # it has none
                    value = (publisher.encode() * (size // 4 + 1))[:size]
                    key = b"k" * KEY_BYTES if publisher in WITH_KEYS else b""
                    await clients.publish(publisher, "topic", value, key)
                    expected.append(Seen(len(expected) + 1, key, value))
            for publisher in ("blipmq", "fujin", "kafka"):
                with pytest.raises((errors.TooLarge, errors.Refused)):
                    await clients.publish(publisher, "topic", bytes(RECORD_BYTES + 1))
            with pytest.raises(errors.PublishRefused):  # Figg can only close
                async with figg.connect(clients.addresses["figg"], give_up_after_s=0) as other:
                    await other.publish("topic", bytes(RECORD_BYTES + 1))
            for reader in READERS:
                wanted = [one for one in expected if one.value] if reader == "fujin" else expected
                check(reader, await clients.read(reader, "topic", len(wanted)), wanted)

    asyncio.run(main())


def test_numbers_that_were_left_out_are_gaps_for_all(tmp_path: Path) -> None:
    """Numbers of a publisher's own, far apart: every reader goes on with the next one that is there."""

    async def main() -> None:
        async with all_clients(tmp_path / "data") as clients:
            await clients.tank.create_topic("topic")
            expected = []
            for numbers in ([1, 2, 10], [300, 301], [2_000_000, 2_000_001, 2_000_007]):
                values = [b"%d" % number for number in numbers]
                await (await clients.tank.send_many("topic", values, keys=values, seqs=numbers))
                expected += [Seen(number, b"%d" % number, b"%d" % number) for number in numbers]
                await clients.publish("kafka", "topic", b"between")
                expected.append(Seen(numbers[-1] + 1, b"", b"between"))
            for reader in READERS:
                check(reader, await clients.read(reader, "topic", len(expected)), expected)
            assert (await clients.kafka.peer.fetch("topic", 500))["error"] == 0, "amid a gap"
            assert (await clients.kafka.peer.records("topic", 500))[0].offset == 2_000_000

    asyncio.run(main())


def test_headers_of_fujin_are_kept(tmp_path: Path) -> None:
    """They are shown where there is a place for them; elsewhere the value is what it was."""
    settings: Settings = {**SETTINGS, "fujin": {"write_headers": True}}

    async def main() -> None:
        async with all_clients(tmp_path / "data", settings) as clients, connect(clients.fujin_at) as peer:
            await clients.tank.create_topic("topic")
            stream = peer.writer()
            stream.send(codec.write(1, b"topic", b"value", (b"name", b"text", b"raw", b"\xff")))
            assert await stream.take(6) == codec.done(Answer.WRITE, 1)
            for reader in READERS:
                check(reader, await clients.read(reader, "topic", 1), [Seen(1, b"", b"value")])
            (line,) = await clients.cat("topic")
            assert line["headers"] == [{"name": "name", "value": "text"}, {"name": "raw", "value_base64": "/w=="}]

    asyncio.run(main())


def test_times_headers_and_missing_values_of_kafka_are_kept(tmp_path: Path) -> None:
    """Where a protocol has no place for them, the value is what it was; a missing one is empty."""

    async def main() -> None:
        async with all_clients(tmp_path / "data") as clients:
            await clients.tank.create_topic("topic")
            headers = (("name", b"text"), ("raw", b"\xff"), ("name", b"again"), ("none", None))
            sent = [
                Record(b"value", b"key", 1_700_000_000_123, headers),
                Record(None, b"tombstone", 1_600_000_000_000),
                Record(b"long", b"k" * 300),
            ]
            assert (await clients.kafka.peer.produce("topic", *sent))["offset"] == 1
            expected = [one._replace(offset=number) for number, one in enumerate(sent, 1)]
            assert await clients.kafka.read("topic", 3) == expected
            seen = [Seen(1, b"key", b"value"), Seen(2, b"tombstone", b""), Seen(3, b"", b"long")]
            for reader in READERS:
                if reader == "logtool":
                    check(reader, await clients.read(reader, "topic", 3), [*seen[:2], Seen(3, b"k" * 300, b"long")])
                elif reader not in ("kafka", "fujin"):  # the latter has no empty values
                    check(reader, await clients.read(reader, "topic", 3), seen)
            line = (await clients.cat("topic"))[0]
            assert [(one["name"], one.get("value")) for one in line["headers"][:3]] == [
                ("name", "text"), ("raw", None), ("name", "again"),
            ]  # fmt: skip
            assert line["timestamp"].startswith("2023-11-14T22:13:20.123")

    asyncio.run(main())

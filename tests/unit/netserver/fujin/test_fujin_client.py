"""The Fujin client against the server: publishing, transactions, subscriptions, the connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration

from netserver import errors, fujin
from netserver.app import Server
from netserver.fujin import codec
from netserver.quic import certificates
from netserver.testing import ServerProcess, running, server
from tests.certificates import self_signed
from tests.echo import run, until

pytestmark = pytest.mark.whole

Test = Callable[[Server, fujin.Client], Awaitable[None]]
OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}
BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def with_client(test: Test, loop: str = "asyncio", options: dict[str, Any] | None = None, **settings: Any) -> None:
    async def main() -> None:
        async with running(settings={**OFF, "fujin": settings}) as quintlog:
            ca = quintlog.data_dir / "fujin-certificate.pem"
            async with fujin.connect(str(quintlog.addresses["fujin"]), ca=ca, **(options or {})) as client:
                await test(quintlog, client)

    run(loop, main())


async def all_of(client: fujin.Client, topic: str, count: int) -> list[bytes]:
    """The first values of a topic, through a group of their own making."""
    found: list[bytes] = []
    async for batch in client.subscribe(topic, ack="auto").batches():
        found += [message.value for message in batch]
        if len(found) >= count:
            return found
    raise AssertionError("the subscription has ended")


# --- publishing


@BOTH
def test_publishing_in_all_ways(loop: str) -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish("orders", b"0")
        futures = [await client.send("orders", b"%d" % number) for number in range(1, 3000)]
        await client.flush()
        assert all(future.done() for future in futures)
        await client.publish_many("orders", [b"%d" % number for number in range(3000, 9000)])
        await (await client.send_many("orders", []))
        assert await all_of(client, "orders", 9000) == [b"%d" % number for number in range(9000)]

    with_client(test, loop)


def test_correlation_ids_wrap() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        client._next = 2**32 - 10
        await client.publish_many("t", [b"%d" % number for number in range(50)])
        assert await all_of(client, "t", 50) == [b"%d" % number for number in range(50)]

    with_client(test, options={"window": 16})


def test_what_a_server_would_refuse_is_refused_here() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        with pytest.raises(errors.TooLarge) as large:
            await client.publish("t", b"x" * 2001)
        assert large.value.limit_bytes == 2000
        with pytest.raises(errors.TooLarge):
            await client.publish_many("t", [b"x", b"x" * 2001])
        with pytest.raises(errors.TooLarge):
            await client.publish("t" * 1025, b"x")
        for topic, value in (("t", b""), ("", b"x")):
            with pytest.raises(ValueError, match=r"Fujin has no|a topic has a name"):
                await client.publish(topic, value)
        with pytest.raises(TypeError):
            await client.publish("t", "text")  # type: ignore[arg-type]
        for more in ({"mode": "pop"}, {"ack": "maybe"}):
            with pytest.raises(ValueError, match="mode is"):
                client.subscribe("t", **more)  # type: ignore[arg-type]

    with_client(test, options={"message_bytes_max": 2000})


def test_a_refused_record_fails_alone() -> None:
    async def main() -> None:
        async with running(settings={**OFF, "topics": {"auto_create": False}}) as quintlog:
            quintlog.log.catalog.create(b"known")
            async with fujin.connect(str(quintlog.addresses["fujin"]), verify=False) as client:
                futures = [await client.send(topic, b"x") for topic in ("known", "unknown", "known")]
                found = await asyncio.gather(*futures, return_exceptions=True)
                assert found[0] is None
                assert found[2] is None
                assert isinstance(found[1], errors.Refused)
                assert found[1].text == "writer not found"
                with pytest.raises(errors.Refused, match="writer not found"):
                    await client.publish_many("unknown", [b"1", b"2", b"3"])

    run("asyncio", main())


def test_headers_field() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish_many("t", [b"1", b"2"])
        async with client.transaction() as tx:
            await tx.publish("t", b"3")
        assert await all_of(client, "t", 3) == [b"1", b"2", b"3"]

    with_client(test, options={"write_headers": True}, write_headers=True)


# --- transactions


@BOTH
def test_transactions(loop: str) -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        async with client.transaction(writer_id="w") as tx:
            await tx.publish("paid", b"17")
            tx.send("audit", b"17 paid")

        async def fails() -> None:
            async with client.transaction() as tx:
                await tx.publish("paid", b"never")
                raise KeyError

        with pytest.raises(KeyError):
            await fails()
        tx = client.transaction()
        await tx.begin()
        await tx.publish("paid", b"never")
        await tx.rollback()
        async with client.transaction() as tx:
            await tx.publish("paid", b"18")
            await tx.commit()
        with pytest.raises(errors.QuintlogError):
            await tx.publish("paid", b"too late")
        with pytest.raises(ValueError, match="begun once"):
            await tx.begin()
        assert await all_of(client, "paid", 2) == [b"17", b"18"]
        assert await all_of(client, "audit", 1) == [b"17 paid"]

    with_client(test, loop)


def test_a_commit_fails_when_a_record_was_not_taken() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        async def fails() -> None:
            async with client.transaction() as tx:
                tx.send("t", b"x")
                quintlog.listeners["fujin"].shared.transaction_bytes += 1 << 40  # type: ignore[attr-defined]
                tx.send("t", b"y")

        with pytest.raises(errors.Refused, match="too many bytes"):
            await fails()
        quintlog.listeners["fujin"].shared.transaction_bytes = 0  # type: ignore[attr-defined]
        await client.publish("t", b"z")
        assert await all_of(client, "t", 1) == [b"z"]

    with_client(test)


def test_a_newer_transaction_of_an_id_ends_the_older_one() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        older = client.transaction("id")
        await older.begin()
        await older.publish("t", b"older")
        async with client.transaction("id") as newer:
            await newer.publish("t", b"newer")
        with pytest.raises(errors.Refused, match="newer writer"):
            await older.commit()
        assert await all_of(client, "t", 1) == [b"newer"]

    with_client(test)


# --- subscriptions


@BOTH
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_manual_acknowledgement(loop: str, mode: str) -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish_many("t", [b"%d" % number for number in range(1000)])
        async with client.subscribe("t", mode=mode) as reader:
            seen: list[bytes] = []
            async for batch in reader.batches(max_records=100):
                assert len(batch) <= 100
                seen += [message.value for message in batch]
                odd = [message for message in batch if int(message.value) % 500 == 7]
                await batch.ack(except_for=odd)
                await batch.nack(odd)
                if len(seen) >= 1002:
                    break
            assert sorted(map(int, seen)) == sorted([*range(1000), 7, 507])
            assert reader.position is not None

    with_client(test, loop, nack_delay=300)


def test_messages() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish("t", '{"a": "ø"}'.encode())
        reader = client.subscribe(b"t")
        message = await reader.next(5)
        assert (message.topic, message.text, message.json()) == (b"t", '{"a": "ø"}', {"a": "ø"})
        assert codec.parse_message_id(message.id) == (0, 1)
        assert reader.position == 2
        await message.nack()
        again = await reader.next(5)
        assert again == message
        await again.ack()
        with pytest.raises(errors.Timeout):
            await reader.next(0.3)
        with pytest.raises(TypeError, match="logtool"):
            await reader.seek(1)
        await reader.close()
        await reader.close()
        with pytest.raises(errors.Unknown):
            await message.ack()

    with_client(test, nack_delay=0)


def test_a_slow_application_stops_the_flow_and_loses_nothing() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish_many("t", [b"%d " % number + b"x" * 1000 for number in range(3000)])
        async with client.subscribe("t", ack="auto", prefetch_records=100) as reader:
            await until(lambda: reader._queue.full)
            await asyncio.sleep(0.2)
            assert reader._queue.size_bytes < 600_000, "what the windows let through"
            found = []
            async for message in reader:
                found.append(int(message.value.split()[0]))
                if len(found) == 3000:
                    break
            assert found == list(range(3000))

    with_client(test)


def test_pull_waits_for_messages_without_turning_in_circles() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        async with client.subscribe("t", mode="pull", ack="auto") as reader:
            with pytest.raises(errors.Timeout):
                await reader.next(0.5)
            assert reader._next < 10
            await client.publish("t", b"m")
            assert (await reader.next(5)).value == b"m"

    with_client(test, fetch_wait=100, fetch_empty="zero")


def test_a_subscription_goes_on_when_somebody_writes_to_its_deleted_topic() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        reader = client.subscribe("t")
        await client.publish("t", b"old")
        await (await reader.next(5)).ack()
        topic = quintlog.log.catalog.get(b"t")
        assert topic is not None
        quintlog.log.catalog.delete(topic)
        await until(lambda: reader._refused == "reader not found")
        assert quintlog.log.catalog.get(b"t") is None
        await client.publish("t", b"new")
        assert (await reader.next(20)).value == b"new"

    with_client(test)


def test_an_unknown_reader_is_refused() -> None:
    async def main() -> None:
        async with (
            running(settings={**OFF, "topics": {"auto_create": False}}) as quintlog,
            fujin.connect(str(quintlog.addresses["fujin"]), verify=False) as client,
        ):
            with pytest.raises(errors.Refused, match="reader not found"):
                await client.subscribe("unknown")
            with pytest.raises(errors.Refused, match="reader not found"):
                async for _ in client.subscribe("unknown"):
                    pass

    run("asyncio", main())


def test_run_acknowledges_what_the_handler_returns_from() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        await client.publish_many("t", [b"%d" % number for number in range(20)])
        reader = client.subscribe("t")
        handled: list[int] = []

        async def handle(message: fujin.Message) -> None:
            number = int(message.value)
            handled.append(number)
            if number == 5 and handled.count(5) == 1:
                raise RuntimeError
            if len(handled) == 21:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(reader.close()))

        await reader.run(handle, concurrency=4)
        assert sorted(handled) == sorted([*range(20), 5])
        assert reader.failures == 1

    with_client(test, nack_delay=0)


# --- the connection


def test_who_the_server_is(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    other, _ = self_signed(tmp_path, "other")

    async def main() -> None:
        settings = {**OFF, "fujin": {"tls_certificate": certificate, "tls_key": key}}
        async with running(settings=settings) as quintlog:
            address = str(quintlog.addresses["fujin"])
            configuration = QuicConfiguration(is_client=False)
            certificates.load(configuration, Path(certificate), Path(key))
            mine = certificates.fingerprint(configuration.certificate)
            for good in ({"ca": certificate}, {"fingerprint": mine}, {"fingerprint": f"sha256:{mine.lower()}"}):
                async with fujin.connect(address, **good) as client:  # type: ignore[arg-type]
                    await client.publish("t", b"x")
            bad: Iterable[dict[str, Any]] = (
                {"ca": other},
                {"fingerprint": mine[:-1] + ("0" if mine[-1] != "0" else "1")},
                {"ca": certificate, "server_name": "elsewhere"},
                {},
                {"ca": tmp_path / "missing.pem"},
            )
            for options in bad:
                with pytest.raises(errors.ConnectionFailed):
                    await fujin.connect(address, **options)
            with pytest.raises(errors.ConnectionFailed, match="ca= names the file"):
                await fujin.connect(address)

    run("asyncio", main())


@pytest.mark.parametrize(("valid_from", "valid_until"), [(-2, -1), (1, 2)])
def test_a_certificate_out_of_its_time(tmp_path: Path, valid_from: int, valid_until: int) -> None:
    """Only who asks for a fingerprint, or for nothing, takes it."""
    certificate, key = self_signed(tmp_path, valid_from=valid_from, valid_until=valid_until)

    async def main() -> None:
        settings = {**OFF, "fujin": {"tls_certificate": certificate, "tls_key": key}}
        async with running(settings=settings) as quintlog:
            address = str(quintlog.addresses["fujin"])
            with pytest.raises(errors.ConnectionFailed):
                await fujin.connect(address, ca=certificate)
            async with fujin.connect(address, verify=False) as client:
                await client.publish("t", b"x")

    run("asyncio", main())


def test_nobody_there() -> None:
    async def main() -> None:
        with pytest.raises(errors.ConnectionFailed):
            await fujin.connect("127.0.0.1:9", verify=False, dial_timeout_s=2)
        with pytest.raises(errors.ConnectionFailed):
            await fujin.connect("no-such-host.invalid", verify=False, dial_timeout_s=2)
        with pytest.raises(ValueError, match="not an address"):
            fujin.connect("host:99999")

    run("asyncio", main())


@pytest.fixture
def process(tmp_path: Path) -> Any:
    with server(tmp_path / "data", settings=OFF) as quintlog:
        yield quintlog


@contextlib.asynccontextmanager
async def client_of(process: ServerProcess, **options: Any) -> AsyncIterator[fujin.Client]:
    host, port = process.address("fujin")
    async with fujin.connect(f"{host}:{port}", verify=False, idle_timeout_s=3, **options) as client:
        yield client


async def stored(process: ServerProcess, topic: str, count: int) -> list[bytes]:
    async with client_of(process) as client:
        return await all_of(client, topic, count)


def test_a_killed_server_comes_back_and_nothing_is_lost(process: ServerProcess) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client_of(process) as client:
            got: list[bytes] = []

            async def read() -> None:
                async for message in client.subscribe("t"):
                    got.append(message.value)
                    with contextlib.suppress(errors.Unknown):
                        await message.ack()

            reading = asyncio.create_task(read())
            for turn in range(3):
                futures = [await client.send("t", b"%d %d" % (turn, number)) for number in range(500)]
                process.kill()
                await loop.run_in_executor(None, process.restart)
                await asyncio.gather(*futures)
            everything = {b"%d %d" % (turn, number) for turn in range(3) for number in range(500)}
            await until(lambda: set(got) == everything, 20)
            reading.cancel()

    run("uvloop", main())


def test_without_resending_the_outcome_is_told(process: ServerProcess) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client_of(process, resend=False) as client:
            await client.publish("t", b"before")
            os.kill(process.pid, signal.SIGSTOP)
            future = await client.send("t", b"on its way")
            process.kill()
            with pytest.raises(errors.Unknown) as unknown:
                await future
            assert unknown.value.records == [(b"t", b"on its way")]
            await loop.run_in_executor(None, process.restart)
            await client.publish("t", b"after")

    run("asyncio", main())


def test_a_transaction_does_not_outlive_its_connection(process: ServerProcess) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client_of(process) as client:
            await client.publish("t", b"before")
            tx = client.transaction()
            await tx.begin()
            await tx.publish("t", b"never")
            committing = client.transaction()
            await committing.begin()
            await committing.publish("t", b"never, or committed")
            os.kill(process.pid, signal.SIGSTOP)
            commit = asyncio.create_task(committing.commit())
            await asyncio.sleep(0)
            process.kill()
            with pytest.raises(errors.Unknown):
                await commit
            with pytest.raises(errors.ConnectionFailed, match="rolled back"):
                await tx.publish("t", b"more")
            await loop.run_in_executor(None, process.restart)
            await client.publish("t", b"after")
        assert b"never" not in await stored(process, "t", 2)

    run("asyncio", main())


def test_a_server_that_stops_gets_its_disconnects_and_is_found_again(process: ServerProcess) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client_of(process) as client:
            events_seen: list[str] = []

            async def watch() -> None:
                async for event in client.events():
                    events_seen.append(event.name)

            watching = asyncio.create_task(watch())
            reader = client.subscribe("t", ack="auto")
            await client.publish("t", b"1")
            assert (await reader.next(5)).value == b"1"
            started = loop.time()
            assert await loop.run_in_executor(None, process.stop) == 0
            assert loop.time() - started < 4, "nobody had to be waited for"
            await loop.run_in_executor(None, process.start)
            process_address = process.address("fujin")
            if process_address[1] == client.port:
                await client.publish("t", b"2")
                assert (await reader.next(10)).value == b"2"
            assert events_seen[:2] == ["connected", "disconnected"]
            watching.cancel()

    process.restart()  # on fixed ports from now on
    run("asyncio", main())


def test_giving_up() -> None:
    async def main() -> None:
        async with running(settings=OFF) as quintlog:
            client = await fujin.connect(str(quintlog.addresses["fujin"]), verify=False, give_up_after_s=0.3)
            reader = client.subscribe("t")
            await reader
        with pytest.raises(errors.ConnectionFailed):
            await reader.next(10)
        with pytest.raises(errors.ConnectionFailed):
            await client.publish("t", b"x")
        await client.close()

    run("asyncio", main())


def test_closing() -> None:
    async def test(quintlog: Server, client: fujin.Client) -> None:
        reader = client.subscribe("t")
        await reader
        future = await client.send("other", b"x")
        await client.close()
        assert future.done()
        assert future.exception() is None
        with pytest.raises(errors.Closed):
            await client.publish("t", b"x")
        with pytest.raises(errors.Closed):
            await reader.next(5)
        async for _ in reader:
            pytest.fail("it is closed")
        await until(lambda: quintlog.counters["fujin"].connections == 0)
        assert quintlog.counters["fujin"].closed == {"peer": 1}

    with_client(test)

"""The server as an object: listeners of every kind, failing starts, low descriptor limits, the end."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path

import pytest

from netserver import app as app_module
from netserver.admin import metrics as metrics_module
from netserver.admin.server import read_token
from netserver.app import Server
from netserver.config.loading import build
from netserver.config.sections import ServerConfig
from netserver.errors import ListenError, ServerError
from netserver.testing import running
from tests import other_listener
from tests.echo import ALONE, Echo, frame, run


def test_a_listener_that_is_not_tcp(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(app_module.OTHER_PROTOCOLS, "fujin", "tests.other_listener")
    other_listener.started.clear()

    async def main() -> None:
        settings = {**ALONE, "fujin": {"listen": "127.0.0.1:0"}}
        async with running(settings=settings, protocols={"echo": Echo()}) as server:
            address = server.addresses["fujin"]
            document = json.loads((server.data_dir / "server.json").read_text())
            assert document["listeners"]["fujin"] == str(address)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.setblocking(False)
                client.connect((address.host, address.port))
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, b"hello")
                assert await loop.sock_recv(client, 10) == b"hello"
            assert server.counters["fujin"].records_published == 1
            reader, writer = await asyncio.open_connection(*socket_address(server))
            writer.write(frame(b"e"))
            await reader.readexactly(5)
            writer.close()

    with caplog.at_level(logging.ERROR, "netserver.app"):
        run("uvloop", main())
    (listener,) = other_listener.started
    assert listener.calls == ["stop_accepting", "finish", "drain", "close"]
    assert "a defect while draining" in caplog.text  # told, and the rest of the stop goes on


def test_who_opens_the_log_next_waits_for_no_peer(tmp_path: Path) -> None:
    own = {"server": {"data_dir": str(tmp_path / "data")}, "admin": {"listen": "127.0.0.1:0"}}

    async def main() -> None:
        server = Server(build(("test", {**ALONE, **own})), {"echo": Echo()})
        await server.start()
        reader, writer = await asyncio.open_connection(*socket_address(server))
        writer.write(frame(b"e"))
        await reader.readexactly(5)
        released = asyncio.Event()
        draining = asyncio.create_task(server.drain(0.1, released.set))
        await asyncio.wait_for(released.wait(), 30)
        async with running(tmp_path / "data", ALONE) as following:
            assert following.ready
            assert await reader.read() == b""  # it was told of the end, and has not closed its side
            assert not draining.done()
            writer.close()
            assert await draining

    run("uvloop", main())


@pytest.mark.parametrize(
    ("path", "within_s"), [("/healthz", 40.0), ("/v1/topics/t/records?follow=true", 0.1)], ids=["idle", "follows"]
)
def test_who_opens_the_log_next_waits_for_nobody_who_reads_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, within_s: float
) -> None:
    monkeypatch.setattr(app_module, "ADMIN_SHUTDOWN_S", 40.0)
    own = {"server": {"data_dir": str(tmp_path / "data")}, "admin": {"listen": "127.0.0.1:0"}}

    async def main() -> None:
        server = Server(build(("test", {**ALONE, **own})))
        await server.start()
        server.log.catalog.create(b"t")
        assert server.admin_address is not None
        reader, writer = await asyncio.open_connection(server.admin_address.host, server.admin_address.port)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {read_token(server.data_dir)}\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        draining = asyncio.create_task(server.drain(within_s))
        await asyncio.wait([draining], timeout=10)
        in_time = draining.done()
        assert await draining
        assert in_time
        writer.close()

    run("uvloop", main())


def socket_address(server: Server) -> tuple[str, int]:
    address = server.addresses["echo"]
    return address.host, address.port


def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            taken = {"figg": {"listen": f"127.0.0.1:{holder.getsockname()[1]}"}}
            with pytest.raises(ListenError):
                async with running(tmp_path, {**ALONE, **taken}):
                    pass
        assert not (tmp_path / "server.json").exists()
        async with running(tmp_path, ALONE) as server:  # the lock is free again
            with pytest.raises(ServerError, match="in use by process") as caught:
                async with running(tmp_path, ALONE):
                    pass
            assert caught.value.exit_code == 6
            assert server.ready

    run("uvloop", main())


def test_other_formats_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text('{"format": 99, "id": 5}\n')

    async def main() -> None:
        with pytest.raises(ServerError, match="has format 99") as caught:
            async with running(tmp_path, ALONE):
                pass
        assert caught.value.exit_code == 3

    run("uvloop", main())


def test_a_disk_that_does_not_take_what_was_appended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app_module, "DRAIN_LOG_S", 0.05)

    async def main() -> None:
        async with running(settings=ALONE) as server:
            kept: list[object] = []
            monkeypatch.setattr(server.log, "drain", kept.append)
            assert await server.drain() is False
            monkeypatch.undo()

    run("uvloop", main())
    assert "the disk did not take" in caplog.text


def fitted(descriptors: int, wanted: int) -> int:
    config = build(("test", {"engine": {"open_files_max": wanted}}))
    return app_module._fitted(config, descriptors).engine.open_files_max


def test_open_files_fit_the_descriptor_limit(caplog: pytest.LogCaptureFixture) -> None:
    assert fitted(20_000, 512) == 512
    assert "open segment files" not in caplog.text
    assert fitted(1024, 512) == 256
    assert "the limit of 1024 open files allows 256" in caplog.text
    assert fitted(64, 512) == 16
    assert fitted(1024, 100) == 100
    assert fitted(300, 70) == 70


def test_rounds_are_counted_between_scrapes_too() -> None:
    async def main() -> None:
        async with running(settings=ALONE) as server:
            partition = server.log.partition(server.log.catalog.get_or_create(b"orders"))
            partition.append([b"value"])
            done = asyncio.Event()
            server.log.drain(done.set)
            await done.wait()
            server._sweep()
            assert server.log.committer.counters.round_sizes == []
            assert sum(server.rounds.records.counts) == 1
            assert isinstance(server.rounds, metrics_module.Rounds)

    run("uvloop", main())


def test_default_configuration_of_the_object() -> None:
    server = Server(ServerConfig())
    assert not server.ready
    assert server.addresses == {}


EVERY_LISTENER = ("figg", "reliably", "tank", "blipmq", "fujin", "kafka", "admin")


def test_all_addresses_in_use_are_told_in_one_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "first") as first:
            taken = {name: {"listen": str(first.addresses[name])} for name in EVERY_LISTENER}
            with pytest.raises(ListenError) as caught:
                async with running(tmp_path / "second", taken):
                    pass
        assert caught.value.exit_code == 6
        lines = str(caught.value).splitlines()
        assert len(lines) == len(EVERY_LISTENER), lines
        for line, name in zip(lines, EVERY_LISTENER, strict=True):
            assert str(first.addresses[name]) in line
        assert not (tmp_path / "second").exists(), "what a start has made goes with it"

    run("uvloop", main())


@pytest.mark.parametrize(("admin", "rest"), [("127.0.0.1:0", "only the admin API"), ("off", "nobody can reach")])
def test_a_server_without_listeners_says_so(caplog: pytest.LogCaptureFixture, admin: str, rest: str) -> None:
    async def main() -> None:
        async with running(settings={**ALONE, "admin": {"listen": admin}}):
            pass

    run("uvloop", main())
    assert "the listeners of all protocols are off: " + rest in caplog.text

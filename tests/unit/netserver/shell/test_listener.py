"""Accepting: limit of connections, descriptors running out, addresses that cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Iterator

import pytest

from netserver.config.settings import Address
from netserver.errors import ListenError
from netserver.limits import ACCEPT_RETRY_S, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES
from netserver.shell import listener as listener_module
from netserver.shell.listener import ConnectionGate, Lost, TcpListener, connections_allowed, raise_descriptor_limit
from netserver.testing import running
from tests.echo import ALONE, LOOPS, Echo, frame, run, until

pytestmark = pytest.mark.whole

LOOPBACK = Address("127.0.0.1", 0)


class Greeter(asyncio.Protocol):
    """Says its number and stays."""

    made = 0

    def __init__(self, lost: Lost) -> None:
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeter.made += 1
        transport.write(b"%d" % Greeter.made)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Greeter.made = 0


async def dial(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(address.host, address.port)


class Tuned(asyncio.Protocol):
    """Keeps how its socket is set."""

    found: tuple[int, ...] = ()

    def __init__(self, lost: Lost) -> None:
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        options = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle = tuple(sock.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        Tuned.found = (*idle, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_is_kept_alive_by_what_its_listener_is_set_to(loop: str) -> None:
    async def main() -> None:
        gate = ConnectionGate(2)
        listener = TcpListener("tuned", LOOPBACK, Tuned, gate)
        _, writer = await dial(listener.start())
        await until(lambda: bool(Tuned.found))
        assert Tuned.found == (1, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, 1)
        listener.stop_accepting()
        writer.close()
        await until(lambda: gate.connections == 0)

    Tuned.found = ()
    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_at_the_limit_connections_wait_and_are_served_when_one_ends(loop: str) -> None:
    async def main() -> None:
        gate = ConnectionGate(2)
        listener = TcpListener("greeter", LOOPBACK, Greeter, gate)
        address = listener.start()
        clients = [await dial(address) for _ in range(4)]
        greetings = [asyncio.create_task(reader.read(1)) for reader, _ in clients]
        await until(lambda: sum(task.done() for task in greetings) == 2)
        await asyncio.sleep(0.05)
        assert sum(task.done() for task in greetings) == 2  # the others are neither closed nor refused
        assert gate.connections == 2
        assert gate.full_total == 1
        clients[0][1].close()
        await until(lambda: sum(task.done() for task in greetings) == 3)
        gate.connections_max = 3
        gate.changed()
        await asyncio.wait_for(asyncio.gather(*greetings), 5)
        assert sorted(task.result() for task in greetings) == [b"1", b"2", b"3", b"4"]
        listener.stop_accepting()
        with pytest.raises(ConnectionError):
            await dial(address)
        for _, writer in clients:
            writer.close()
        await until(lambda: gate.connections == 0)

    run(loop, main())


@contextlib.contextmanager
def descriptors_used_up(spare: int) -> Iterator[None]:
    """Only ``spare`` more descriptors can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    holes = [os.dup(0) for _ in range(highest + 1 - len(os.listdir("/proc/self/fd")))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    fillers = []
    with contextlib.suppress(OSError):
        while True:
            fillers.append(os.dup(0))
    for descriptor in [fillers.pop() for _ in range(spare)]:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in (*holes, *fillers):
            os.close(descriptor)


@pytest.mark.parametrize("loop", LOOPS)
def test_without_descriptors_it_neither_spins_nor_stops_for_ever(loop: str) -> None:
    async def main() -> None:
        gate = ConnectionGate(100)
        listener = TcpListener("greeter", LOOPBACK, Greeter, gate)
        address = listener.start()
        first_reader, first_writer = await dial(address)
        assert await first_reader.read(1) == b"1"
        sockets = [socket.socket() for _ in range(3)]
        with descriptors_used_up(0):
            for client in sockets:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, (address.host, address.port))
            await until(lambda: listener.accept_errors)
            began, errors = asyncio.get_running_loop().time(), listener.accept_errors
            await asyncio.sleep(0.6)
            tries = (asyncio.get_running_loop().time() - began) / ACCEPT_RETRY_S
            assert 0 <= listener.accept_errors - errors <= tries + 1, "once in a while, not in each turn of the loop"
            assert Greeter.made == 1
            first_writer.close()  # frees two descriptors, ours and its
            await until(lambda: Greeter.made >= 2)
            assert Greeter.made <= 3
        await until(lambda: Greeter.made == 4)
        for client in sockets:
            client.close()
        await until(lambda: gate.connections == 0)
        listener.stop_accepting()

    run(loop, main())


def test_a_connection_that_cannot_be_set_up_does_not_count_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    def make(lost: Lost) -> asyncio.BaseProtocol:
        raise RuntimeError("a defect")

    async def main() -> None:
        gate = ConnectionGate(2)
        listener = TcpListener("greeter", LOOPBACK, make, gate)
        address = listener.start()
        for _ in range(3):
            reader, writer = await dial(address)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        await until(lambda: gate.connections == 0)
        listener.stop_accepting()

    run("uvloop", main())
    assert caplog.text.count("a connection could not be set up") == 3


def test_addresses_that_cannot_be_had() -> None:
    async def main() -> None:
        gate = ConnectionGate(1)
        holder = TcpListener("one", LOOPBACK, Greeter, gate)
        taken = holder.start()
        with pytest.raises(ListenError, match=r"another process listens there.*--two HOST:PORT"):
            TcpListener("two", taken, Greeter, gate).start()
        with pytest.raises(ListenError, match="this machine has no such address"):
            TcpListener("three", Address("192.0.2.1", 0), Greeter, gate).start()
        with pytest.raises(ListenError, match="cannot resolve"):
            TcpListener("four", Address("no.such.host.invalid", 0), Greeter, gate).start()
        holder.stop_accepting()

    run("uvloop", main())


def test_a_name_with_two_addresses_gets_one_port_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_args: object, **_options: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
        ]

    async def main() -> None:
        monkeypatch.setattr(listener_module.socket, "getaddrinfo", both)
        listener = TcpListener("greeter", Address("localhost", 0), Greeter, ConnectionGate(9))
        address = listener.start()
        monkeypatch.undo()
        for host in ("127.0.0.1", "127.0.0.2"):
            reader, writer = await dial(Address(host, address.port))
            assert await reader.read(1)
            writer.close()
        listener.stop_accepting()

    run("uvloop", main())


def test_how_many_connections_descriptors_allow() -> None:
    assert connections_allowed(10_000, 20_000, 700) == 10_000
    assert connections_allowed(10_000, 1024, 704) == 320
    assert connections_allowed(10_000, 64, 704) == 16
    assert connections_allowed(10_000, 2, 704) == 1
    limit = raise_descriptor_limit()
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(certificate, key) files of a self-signed certificate for 127.0.0.1."""
    from tests.certificates import self_signed

    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("loop", LOOPS)
def test_tls(loop: str, certificate: tuple[str, str]) -> None:
    async def main() -> None:
        echo = Echo()
        context = ssl.create_default_context(cafile=certificate[0])
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.load_cert_chain(*certificate)
        async with running(settings=ALONE, protocols={"echo": echo}) as server:
            server.tls.replace({"echo": server_context})
            address = server.addresses["echo"]
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            data = frame(b"e" + os.urandom(3_000_000))
            writer.write(frame(b"h") + data)
            await until(lambda: echo.sessions and echo.sessions[0].connection.held)
            echo.sessions[0].connection.release("test")
            assert await reader.readexactly(len(data)) == data

            plain_reader, plain_writer = await dial(address)
            plain_writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.wait_for(plain_reader.read(-1), 5)
            plain_writer.close()
            silent_reader, silent_writer = await dial(address)
            await until(lambda: server.gate.connections == 2)
            writer.close()
            await until(lambda: server.gate.connections == 1)
        assert await silent_reader.read(-1) == b""  # its handshake was given up by the drain
        silent_writer.close()

    run(loop, main())

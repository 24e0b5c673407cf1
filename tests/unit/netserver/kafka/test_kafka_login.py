"""SASL: who a client is by its key, what it is told, and that nobody gets anywhere without."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.rights import Right
from netserver.app import Server
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from netserver.kafka.limits import LOGIN_REQUEST_BYTES_MAX
from netserver.limits import REFUSED_LINGER_S, WRONG_KEYS_FREE
from tests.access_place import Place, key_of, place
from tests.certificates import self_signed
from tests.kafka_peer import Peer, batch, metadata, produce, with_server

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}
IDENTITIES: Final[dict[str, dict[str, Any]]] = {
    "shop": {"publish": ["orders"], "subscribe": ["orders"]},
    "mill": EVERYTHING | {"quotas": {"connections": 1}},
    "elsewhere": EVERYTHING | {"listeners": ["blipmq"]},
    "admin": {"role": "operator"},
}


def at_place(tmp_path: Path, scenario: Callable[[Place], Awaitable[None]]) -> None:
    async def test() -> None:
        async with place(tmp_path, IDENTITIES) as here:
            await scenario(here)

    asyncio.run(test())


async def peer_of(here: Place, who: str = "stranger") -> Peer:
    return Peer(*await here.streams("kafka", who))


async def log_in(peer: Peer, token: bytes, version: int = 1) -> dict[str, Any]:
    """Both requests; the answer to the second one."""
    shaken = await peer.ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    assert (shaken["error"], list(shaken["mechanisms"])) == (0, ["PLAIN"])
    return await peer.ask(Key.SASL_AUTHENTICATE, {"token": token}, version)


def plain(name: str, key: str | None = None, acts_as: str = "") -> bytes:
    return f"{acts_as}\0{name}\0{key_of(name) if key is None else key}".encode()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("acts_as", ["", "shop"])
def test_a_key_says_who_somebody_is_and_its_rights_count(tmp_path: Path, version: int, acts_as: str) -> None:
    async def scenario(here: Place) -> None:
        peer = await peer_of(here)
        assert (await peer.ask(Key.API_VERSIONS, {}))["error"] == 0
        found = await log_in(peer, plain("shop", acts_as=acts_as), version)
        assert (found["error"], found["message"], found["token"]) == (0, None, b"")
        assert found["lifetime_ms"] == 0, "nobody is asked to log in again"
        topics = (await peer.ask(Key.METADATA, metadata("orders", "secrets")))["topics"]
        assert [one["error"] for one in topics] == [0, Code.TOPIC_FORBIDDEN]
        assert (await peer.produce("orders", b"x"))["error"] == 0
        assert (await peer.produce("secrets", b"x"))["error"] == Code.TOPIC_FORBIDDEN
        assert here.server.counters["kafka"].auth_failures == 0

    at_place(tmp_path, scenario)


@pytest.mark.parametrize(
    "token",
    [
        plain("shop", "a wrong key, which is long"),
        plain("mill", key_of("shop")),
        plain("", key_of("shop")),
        plain("shop", acts_as="mill"),
        plain("elsewhere"),
        plain("shop") + b"\0",
        b"\0shop\0\xff\xff",
        b"",
        b"\0shop\0" + b"k" * LOGIN_REQUEST_BYTES_MAX,
    ],
    ids=["key", "name", "no-name", "acts-as", "listener", "parts", "utf-8", "empty", "long"],
)
def test_what_is_no_login_is_told_and_ends_the_connection(tmp_path: Path, token: bytes) -> None:
    async def scenario(here: Place) -> None:
        for who in ("stranger", "shop"):  # whoever an address says that it is
            if len(token) > LOGIN_REQUEST_BYTES_MAX and who == "stranger":
                continue
            peer = await peer_of(here, who)
            found = await log_in(peer, token)
            assert found["error"] == Code.WRONG_KEY
            assert "its name in the access file" in found["message"]
            assert await peer.is_closed()
        failures = here.server.counters["kafka"].auth_failures
        assert here.server.access.audit.refused == failures > 0

    at_place(tmp_path, scenario)


def test_nothing_is_answered_before_the_login(tmp_path: Path) -> None:
    async def scenario(here: Place) -> None:
        asked: dict[Key, dict[str, Any]] = {
            Key.METADATA: metadata("orders"),
            Key.PRODUCE: produce("orders", batch(b"x")),
            Key.INIT_PRODUCER_ID: {"transactional_id": None, "timeout_ms": 1},
        }
        peers = []
        began = time.monotonic()
        for key, body in asked.items():
            peers.append(peer := await peer_of(here))
            peer.send(key, body)
        assert all([await peer.is_closed() for peer in peers])
        assert time.monotonic() - began >= REFUSED_LINGER_S * 0.9, "whoever dials in a circle does it slowly"
        assert here.server.log.catalog.get(b"orders") is None
        assert here.server.counters["kafka"].closed["refused"] == len(asked)

    at_place(tmp_path, scenario)


def test_a_stranger_has_nothing_large_gathered(tmp_path: Path) -> None:
    """The head of a request decides, before the rest of it has come."""

    async def scenario(here: Place) -> None:
        for key in (Key.PRODUCE, Key.SASL_AUTHENTICATE):
            peer = await peer_of(here)
            head = (50 << 20 if key == Key.PRODUCE else 1 << 20).to_bytes(4, "big") + key.to_bytes(2, "big")
            peer.writer.write(head + bytes((0, 3 if key == Key.PRODUCE else 1)) + bytes(100))
            assert await peer.is_closed()

    at_place(tmp_path, scenario)


def test_other_mechanisms_and_another_order_are_told_in_the_protocols_words(tmp_path: Path) -> None:
    async def scenario(here: Place) -> None:
        peer = await peer_of(here)
        found = await peer.ask(Key.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-256"})
        assert (found["error"], list(found["mechanisms"])) == (Code.UNSUPPORTED_MECHANISM, ["PLAIN"])
        assert await peer.is_closed()
        peer = await peer_of(here)
        found = await peer.ask(Key.SASL_AUTHENTICATE, {"token": plain("shop")})
        assert found["error"] == Code.SASL_STATE
        assert await peer.is_closed()
        peer = await peer_of(here)
        assert (await log_in(peer, plain("shop")))["error"] == 0
        assert (await peer.ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"}))["error"] == Code.SASL_STATE
        assert await peer.is_closed()

    at_place(tmp_path, scenario)


def test_where_no_key_counts_a_login_is_out_of_place() -> None:
    async def scenario(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        found = await peer.ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        assert (found["error"], list(found["mechanisms"])) == (Code.SASL_STATE, [])
        assert await peer.is_closed()

    with_server(scenario)


def test_a_wrong_key_waits_and_a_right_one_does_not(tmp_path: Path) -> None:
    async def scenario(here: Place) -> None:
        for number in range(WRONG_KEYS_FREE + 2):
            began = time.monotonic()
            assert (await log_in(await peer_of(here), plain("shop", f"wrong {number}")))["error"] == Code.WRONG_KEY
        assert time.monotonic() - began > 0.1
        began = time.monotonic()
        hasty = await peer_of(here)
        await hasty.ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        hasty.send(Key.SASL_AUTHENTICATE, {"token": plain("shop", "wrong again")})
        hasty.writer.write_eof()
        assert (await hasty.answer())["error"] == Code.WRONG_KEY
        assert time.monotonic() - began > 0.1, "hanging up is no way to an early answer"
        assert (await log_in(await peer_of(here), plain("shop")))["error"] == 0

    at_place(tmp_path, scenario)


def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    async def scenario(here: Place) -> None:
        assert (await log_in(await peer_of(here), plain("mill")))["error"] == 0
        second = await peer_of(here)
        found = await log_in(second, plain("mill"))
        assert (found["error"], found["message"]) == (Code.WRONG_KEY, "too many connections of mill")
        assert await second.is_closed()
        assert here.server.access.meters["mill"].connections == 1

    at_place(tmp_path, scenario)


@pytest.mark.parametrize("narrowed", [False, True], ids=["revoked", "narrowed"])
def test_a_key_that_is_taken_back_ends_its_connections_within_a_second(tmp_path: Path, narrowed: bool) -> None:
    async def scenario(here: Place) -> None:
        peers = {name: await peer_of(here) for name in ("shop", "mill")}
        for name, peer in peers.items():
            assert (await log_in(peer, plain(name)))["error"] == 0
        if narrowed:
            lines = [json.loads(line) for line in here.path.read_text().splitlines()]
            kept = [line | {"publish": []} if line["name"] == "shop" else line for line in lines]
            here.path.write_text("".join(json.dumps(line) + "\n" for line in kept))
            here.server.reload(here.server.config)
        else:
            assert (await here.http("DELETE", "/v1/keys/shop", "admin"))[0] == 200
        began = time.monotonic()
        assert await peers["shop"].is_closed()
        assert time.monotonic() - began < 1
        assert (await peers["mill"].produce("made", b"x"))["error"] == Code.UNKNOWN_TOPIC

    at_place(tmp_path, scenario)


def test_whoever_does_not_log_in_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netserver.kafka.login.LOGIN_S", 0.05)

    async def scenario(here: Place) -> None:
        known, stranger = await peer_of(here, "shop"), await peer_of(here)
        assert await stranger.is_closed()
        await stranger.close()
        while not here.server.counters["kafka"].closed["handshake"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert (await known.ask(Key.API_VERSIONS, {}))["error"] == 0

    at_place(tmp_path, scenario)


def test_a_server_that_stops_waits_for_no_wrong_key(tmp_path: Path) -> None:
    servers: list[Server] = []

    async def scenario(here: Place) -> None:
        servers.append(here.server)
        for number in range(WRONG_KEYS_FREE + 6):
            here.server.access.guard.failed("127.0.0.1", f"wrong {number}")
        peer = await peer_of(here)
        await peer.ask(Key.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        peer.send(Key.SASL_AUTHENTICATE, {"token": plain("shop", "wrong")})
        while not here.server.counters["kafka"].auth_failures:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    at_place(tmp_path, scenario)
    assert servers[0].counters["kafka"].closed["refused"] == 1


@pytest.mark.parametrize(
    "first", [b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0", b"GET / HTTP/1.1\r\n\r\n"], ids=["kafka", "http"]
)
def test_what_is_no_tls_where_tls_is_spoken_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    certificate, key = self_signed(tmp_path)

    async def scenario(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        peer.writer.write(first)
        async with asyncio.timeout(20):
            while await peer.reader.read(100):
                pass
            while "connection failed" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert "it does not begin with TLS" in caplog.text

    with caplog.at_level("INFO"):
        with_server(scenario, settings={"kafka": {"tls_certificate": certificate, "tls_key": key}})

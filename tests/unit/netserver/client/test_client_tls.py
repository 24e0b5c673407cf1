"""TLS of every client: with an authority, with a client certificate, with a context; and what is said when it fails."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from netserver import figg, fujin
from netserver.app import Server
from netserver.client import blocking
from netserver.client.recognition import Found, recognise
from netserver.client.tls import ClientTls, TlsFiles, client_tls
from netserver.errors import ConnectionFailed, TlsFailed, WrongServer
from netserver.testing import running
from tests.certificates import Authority, self_signed

pytestmark = pytest.mark.whole

TCP = ("figg", "tank", "blipmq", "reliably")
PROTOCOLS = (*TCP, "fujin")
OPTIONS: dict[str, dict[str, Any]] = {"blipmq": {"api_key": "any"}, "reliably": {"params": {"count": 2}}}
OFF = {"listen": "off"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUINTLOG_CA", "QUINTLOG_CERT", "QUINTLOG_KEY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def secured(
    certificate: tuple[str, str], client_ca: str = "", protocols: tuple[str, ...] = TCP
) -> AsyncIterator[Server]:
    section = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    settings: dict[str, dict[str, Any]] = {name: dict(OFF) for name in PROTOCOLS if name not in protocols}
    for name in protocols:
        settings[name] = {**section, **({"tls_client_ca": client_ca} if client_ca else {})}
    async with running(settings=settings) as server:
        yield server


def options_of(protocol: str, **options: Any) -> dict[str, Any]:
    return {**OPTIONS.get(protocol, {}), "dial_timeout_s": 5.0, "backoff": lambda failures: 0.01, **options}


async def use(protocol: str, server: Server, **options: Any) -> None:
    """Connect, and have one answer."""
    async with import_module(f"netserver.{protocol}").connect(
        str(server.addresses[protocol]), **options_of(protocol, **options)
    ) as client:
        if protocol == "reliably":
            await client.next(20)
        elif protocol == "tank":
            await client.create_topic("orders", exist_ok=True)
        else:
            await client.publish("orders", b"one")


def use_blocking(protocol: str, server: Server, **options: Any) -> None:
    address = str(server.addresses[protocol])
    with blocking.connect(protocol, address, **options_of(protocol, **options)) as client:
        if protocol == "reliably":
            client.next(20)
        elif protocol == "tank":
            client.create_topic("orders", exist_ok=True)
        else:
            client.publish("orders", b"one")


async def problem(protocol: str, server: Server, **options: Any) -> TlsFailed:
    with pytest.raises(TlsFailed) as caught:
        await use(protocol, server, **options)
    assert str(caught.value).startswith(str(server.addresses[protocol]))
    return caught.value


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("mode", ["plain", "tls", "client certificate"])
def test_every_protocol(authority: Authority, mode: str) -> None:
    server_files, own = authority.signed("server"), authority.signed("client")
    words = {
        "plain": {},
        "tls": {"ca": authority.ca},
        "client certificate": {"ca": Path(authority.ca), "cert": own[0], "key": own[1]},
    }[mode]

    async def main() -> None:
        client_ca = authority.ca if mode == "client certificate" else ""
        async with running() if mode == "plain" else secured(server_files, client_ca, PROTOCOLS) as server:
            for protocol in PROTOCOLS:
                more: dict[str, Any] = {"verify": False} if protocol == "fujin" and mode == "plain" else {}
                await use(protocol, server, **words, **more)
                await asyncio.to_thread(use_blocking, protocol, server, **words, **more)

    run(main())


def test_the_environment_and_a_context_do_the_same(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    own = authority.signed("client")
    context = ssl.create_default_context(cafile=authority.ca)
    context.load_cert_chain(*own)

    async def main() -> None:
        async with secured(authority.signed("server"), authority.ca) as server:
            await asyncio.gather(*(use(protocol, server, ssl_context=context) for protocol in TCP))
            for name, value in (("CA", authority.ca), ("CERT", own[0]), ("KEY", own[1])):
                monkeypatch.setenv(f"QUINTLOG_{name}", value)
            await asyncio.gather(*(use(protocol, server) for protocol in TCP))
            assert (await problem("figg", server, ca="off")).kind == "tls"

    run(main())


def test_it_speaks_tls_or_does_not(authority: Authority) -> None:
    own = authority.signed("client")

    async def main() -> None:
        async with secured(authority.signed("server"), protocols=("figg", "tank", "blipmq")) as server:
            for protocol in ("figg", "tank", "blipmq"):
                found = await problem(protocol, server)
                assert str(found).endswith(' speaks TLS: give ca= (the file of its authority, or "system")')
                assert found.kind == "tls"
                assert not found.retryable
            with pytest.raises(WrongServer, match=r"answers, but not as Figg: it speaks TANK$"):
                await figg_at(server, "tank", ca=authority.ca)
        async with running() as server:
            for protocol in TCP:
                found = await problem(protocol, server, ca=authority.ca, cert=own[0], key=own[1])
                assert 'does not speak TLS: leave out ca= and cert=, or say ca="off" (it speaks ' in str(found)
                assert found.kind == "plain"
            with pytest.raises(WrongServer, match=r"answers, but not as Figg: it speaks TANK, without TLS$"):
                await figg_at(server, "tank", ca=authority.ca)

    run(main())


async def figg_at(server: Server, other: str, **options: Any) -> None:
    async with figg.connect(str(server.addresses[other]), **options_of("figg", **options)) as client:
        await client.publish("orders", b"one")


def test_a_client_certificate_is_missing_or_a_strangers(authority: Authority, tmp_path: Path) -> None:
    stranger = self_signed(tmp_path, "stranger")
    expired = authority.signed("expired", valid_from=-9, until=-2)

    async def main() -> None:
        async with secured(authority.signed("server"), authority.ca) as server:
            for protocol in TCP:
                found = await problem(protocol, server, ca=authority.ca)
                assert str(found).endswith("the server wants a client certificate: cert= and key=")
                assert found.kind == "wanted"
                found = await problem(protocol, server, ca=authority.ca, cert=stranger[0], key=stranger[1])
                assert str(found).endswith(
                    "the server does not trust the authority of the client's certificate (cert=)"
                )
            found = await problem("figg", server, ca=authority.ca, cert=expired[0], key=expired[1])
            assert str(found).endswith("the server says that the client's certificate (cert=) has expired")
            old = ssl.create_default_context(cafile=authority.ca)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ConnectionFailed):
                await use("tank", server, ssl_context=old)

    run(main())


@pytest.mark.parametrize("protocol", ["figg", "fujin"])
def test_a_server_that_is_not_to_be_trusted(authority: Authority, tmp_path: Path, protocol: str) -> None:
    other = Authority(tmp_path / "other", "stranger").ca
    cases = {
        "no authority that is trusted": (authority.signed("a"), other),
        "needs a new": (authority.signed("b", valid_from=-9, until=-2), authority.ca),
        "one of the two clocks": (authority.signed("c", valid_from=2), authority.ca),
        "server_name=": (authority.signed("d", hosts=("elsewhere",)), authority.ca),
    }

    async def main() -> None:
        for text, (files, ca) in cases.items():
            async with secured(files, protocols=(protocol,)) as server:
                assert text in str(await problem(protocol, server, ca=ca))
                if text == "server_name=":
                    await use(protocol, server, ca=ca, server_name="elsewhere")

    run(main())


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.signed("client")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    encrypted = tmp_path / "encrypted"
    os.system(f"openssl pkcs8 -topk8 -v2 aes256 -passout pass:secret -in {key} -out {encrypted}")
    for words, text in (
        ({"ca": tmp_path / "none"}, f"{tmp_path / 'none'}: no such file or directory"),
        ({"ca": nonsense}, f"{nonsense}: no certificates in PEM"),
        ({"cert": nonsense}, f"{nonsense}: not a certificate and its unencrypted key in PEM"),
        ({"cert": certificate, "key": nonsense}, f"{certificate} and {nonsense}: not a certificate and its"),
        ({"cert": certificate, "key": encrypted}, f"{certificate} and {encrypted}: not a certificate and its"),
    ):
        with pytest.raises(TlsFailed) as caught:
            figg.connect("127.0.0.1:1", **words)  # type: ignore[arg-type]
        assert str(caught.value).startswith(text)
        assert caught.value.kind == "files"
    for protocol in PROTOCOLS:
        with pytest.raises(ValueError, match="cert= is missing"):
            import_module(f"netserver.{protocol}").connect("127.0.0.1:1", key=key, **OPTIONS.get(protocol, {}))
    with pytest.raises(ValueError, match="give either"):
        client_tls(ca=authority.ca, ssl_context=ssl.create_default_context())
    with pytest.raises(ValueError, match="QUIC cannot use"):
        fujin.connect("127.0.0.1:1", ssl_context=ssl.create_default_context())


def test_a_renewed_certificate_counts_from_the_next_connection_on(authority: Authority) -> None:
    certificate, key = authority.signed("client")
    tls = ClientTls(TlsFiles(authority.ca, certificate, key))
    first = tls.context()
    assert tls.context() is first
    authority.signed("client")
    os.utime(certificate, ns=(1, 1))
    assert tls.context() is not first


def test_what_is_recognised_behind_an_address(authority: Authority) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            began = time.monotonic()
            assert await recognise("127.0.0.1", silent.getsockname()[1], None) == Found(False)
            assert time.monotonic() - began < 20, "it asks all at once"
            port = silent.getsockname()[1]
        assert await recognise("127.0.0.1", port, None) == Found(None)
        async with secured(authority.signed("server"), protocols=("figg",)) as server:
            where = server.addresses["figg"]
            assert await recognise(where.host, where.port, None) == Found(True)
            tls = ClientTls(TlsFiles(authority.ca))
            assert await recognise(where.host, where.port, tls) == Found(True, "Figg")

    run(main())

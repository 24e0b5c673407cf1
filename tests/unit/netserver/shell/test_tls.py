"""TLS of the TCP listeners: certificates from files, clients that must show one, files that are wrong."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from netserver.config.loading import build
from netserver.config.sections import FiggSection
from netserver.errors import ConfigError
from netserver.shell.tls import TlsContexts, server_context
from netserver.testing import running
from tests.certificates import self_signed
from tests.echo import ALONE, Echo, frame, run, until

pytestmark = pytest.mark.whole


def test_no_certificate_no_tls() -> None:
    assert server_context(FiggSection()) is None
    assert TlsContexts().get("figg") is None


def test_old_versions_are_refused(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = server_context(FiggSection(tls_certificate=certificate, tls_key=key))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("wrong", ["missing", "swapped", "ca"])
def test_wrong_files_are_named(tmp_path: Path, wrong: str) -> None:
    certificate, key = self_signed(tmp_path)
    section = {
        "missing": FiggSection(tls_certificate=str(tmp_path / "none.pem"), tls_key=key),
        "swapped": FiggSection(tls_certificate=key, tls_key=certificate),
        "ca": FiggSection(tls_certificate=certificate, tls_key=key, tls_client_ca=key),
    }[wrong]
    with pytest.raises(ConfigError, match="TLS files"):
        server_context(section)


def test_clients_must_show_a_certificate_of_the_authority(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    own = self_signed(tmp_path, "client")
    stranger = self_signed(tmp_path, "stranger")
    section = FiggSection(tls_certificate=certificate, tls_key=key, tls_client_ca=own[0])

    async def main() -> None:
        async with running(settings=ALONE, protocols={"echo": Echo()}) as server:
            server.tls.replace({"echo": server_context(section)})
            address = server.addresses["echo"]

            async def answer(shown: tuple[str, str] | None) -> bytes:
                context = ssl.create_default_context(cafile=certificate)
                if shown is not None:
                    context.load_cert_chain(*shown)
                try:
                    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
                    writer.write(frame(b"e"))
                    got = await reader.read(5)
                    writer.close()
                except (ssl.SSLError, ConnectionError):
                    return b""
                return got

            assert await answer(own) == frame(b"e")
            assert await answer(None) == b""
            assert await answer(stranger) == b""
            await until(lambda: server.gate.connections == 0)

    run("uvloop", main())


def test_a_reload_with_wrong_files_changes_nothing(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)

    async def main() -> None:
        async with running(settings=ALONE) as server:
            good = {"figg": {"tls_certificate": certificate, "tls_key": key}, "topics": {"retention_ms": "1d"}}
            bad = {"figg": {"tls_certificate": key, "tls_key": certificate}, "topics": {"retention_ms": "2d"}}
            base = ("test", {**ALONE, "server": {"data_dir": str(server.data_dir)}})
            assert [name for name in server.reload(build(base, ("test", good))) if name.startswith("figg")] == []
            context = server.tls.get("figg")
            assert context is not None
            with pytest.raises(ConfigError):
                server.reload(build(base, ("test", bad)))
            assert server.tls.get("figg") is context
            assert server.config.engine.topic.retention_ms == 86_400_000
            assert server.log.config.topic.retention_ms == 86_400_000

    run("uvloop", main())

"""`certificates`: an authority and certificates of it, used by a real server and real clients; expiry in `check`."""

from __future__ import annotations

import json
import os
import signal
import ssl
import stat
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

import quintlog
from netserver.testing import server
from tests.certificates import self_signed
from tests.unit.conftest import Logtool


@pytest.fixture
def made(logtool: Logtool, tmp_path: Path) -> Path:
    """A directory with a server's and a client's certificate: two commands."""
    directory = tmp_path / "certificates"
    assert logtool("certificates", "make", "server", "--host", "logs.example.com", "--dir", str(directory))[0] == 0
    assert logtool("certificates", "make", "client", "billing", "--dir", str(directory))[0] == 0
    return directory


def test_files_names_and_lifetimes(made: Path, logtool: Logtool) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert modes == {
        "ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600, "billing.pem": 0o644,
        "billing.key": 0o600,
    }  # fmt: skip
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    files = [str(made / name) for name in ("ca.pem", "server.pem", "billing.pem")]
    code, out, _ = logtool("certificates", "show", *files, "-o", "json")
    assert code == 0
    authority, its_server, client = json.loads(out)["items"]
    assert its_server["issuer"] == client["issuer"] == authority["subject"]
    assert [item["days"] for item in (authority, its_server, client)] == [3649, 396, 396]
    assert {"logs.example.com", "localhost", "127.0.0.1", "::1"} <= set(its_server["names"])
    assert client["subject"] == "CN=billing"
    usages = [
        x509.load_pem_x509_certificate((made / name).read_bytes())
        .extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        .value
        for name in ("server.pem", "billing.pem")
    ]
    assert [usage.dotted_string for value in usages for usage in value] == ["1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"]
    assert os.system(f"openssl verify -x509_strict -CAfile {files[0]} {files[1]} {files[2]} >/dev/null") == 0


def test_renewal_keeps_authority_and_names(made: Path, logtool: Logtool) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    names = logtool("certificates", "show", str(made / "server.pem"), "-o", "json")[1]
    assert logtool("certificates", "make", "server", "--dir", str(made))[0] == 0
    changed = {path.name for path in made.iterdir() if before[path.name] != path.read_bytes()}
    assert changed == {"server.pem", "server.key"}
    again = logtool("certificates", "show", str(made / "server.pem"), "-o", "json")[1]
    assert json.loads(again)["items"][0]["names"] == json.loads(names)["items"][0]["names"]


def test_what_is_refused(made: Path, logtool: Logtool, tmp_path: Path) -> None:
    def make(*args: str) -> tuple[int, str]:
        code, _, err = logtool("certificates", "make", *args, "--dir", str(made))
        return code, err

    assert make("client", "ca")[0] == 2
    assert make("client", "../elsewhere")[0] == 2
    assert make("server", "--host", "ünicode.example")[0] == 2
    assert "expires on" in make("client", "--days", "3650")[1], "it would outlive the authority"
    (made / "ca.key").write_bytes((made / "server.key").read_bytes())
    assert "is not the key of" in make("client")[1]
    (made / "ca.key").write_text("nonsense")
    assert make("client")[0] == 3
    assert logtool("certificates", "show", str(made / "ca.key"))[0] == 3
    expired, _ = self_signed(tmp_path, "expired", valid_from=-9, valid_until=-2)
    assert logtool("certificates", "show", expired)[0] == 1
    soon, _ = self_signed(tmp_path, "soon", valid_until=20)
    code, _, err = logtool("certificates", "show", soon)
    assert (code, "expires in 19 days" in err) == (0, True)


def test_a_server_and_a_client_use_them(made: Path, logtool: Logtool, tmp_path: Path) -> None:
    section = {"tls_certificate": made / "server.pem", "tls_key": made / "server.key"}
    both = {**section, "tls_client_ca": made / "ca.pem"}
    words = {"ca": made / "ca.pem", "cert": made / "billing.pem", "key": made / "billing.key"}
    settings = {"figg": both, "fujin": section, "admin": both, "tank": {}, "blipmq": {}, "reliably": {}}
    with server(tmp_path / "data", settings) as process:
        options = ("--data-dir", str(process.data_dir), *(f"--{word}={path}" for word, path in words.items()))
        for protocol in ("figg", "fujin"):
            host, port = process.address(protocol)
            with quintlog.connect(protocol, f"{host}:{port}", **words) as client:
                client.publish("orders", b"one")
                old = (made / "server.pem").read_bytes()
                assert logtool("certificates", "make", "server", "--dir", str(made), "--days", "10")[0] == 0
                assert (made / "server.pem").read_bytes() != old
                os.kill(process.pid, signal.SIGHUP)
                while "in 10 days" not in (said := logtool(*options, "check", "--disk-free", "0"))[1]:
                    assert said[0] in (0, 1), said
                client.publish("orders", b"two")  # an open connection does not notice
            with quintlog.connect(protocol, f"{host}:{port}", **words) as client:
                client.publish("orders", b"three")
        code, out, _ = logtool(*options, "check", "--disk-free", "0")
        assert code == 1
        assert "certificate expires in 10 days (least: 14); renew it" in out
        assert logtool(*options, "check", "--disk-free", "0", "--certificate-days", "5")[0] == 0
        certificate = x509.load_pem_x509_certificate((made / "server.pem").read_bytes())
        left_s = (certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds()
        page = {
            line.split()[0]: float(line.split()[1])
            for line in metrics_of(process.admin_url, words)
            if line.startswith("quintlog_certificate_expires_in_seconds{")
        }
        assert set(page) == {
            f'quintlog_certificate_expires_in_seconds{{listener="{name}"}}' for name in ("admin", "figg", "fujin")
        }
        assert all(abs(value - left_s) < 120 for value in page.values())


def metrics_of(url: str, words: dict[str, Path]) -> list[str]:
    context = ssl.create_default_context(cafile=words["ca"])
    context.load_cert_chain(words["cert"], words["key"])
    with urllib.request.urlopen(f"{url}/metrics", context=context, timeout=30) as answer:
        return list(answer.read().decode().splitlines())

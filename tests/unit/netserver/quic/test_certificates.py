"""Certificates of QUIC listeners."""

from __future__ import annotations

import hashlib
import random
import ssl
import stat
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509

from netserver.config.sections import TankSection
from netserver.errors import CertificateError, ConfigError
from netserver.quic import certificates
from netserver.shell.tls import server_context
from tests.certificates import self_signed
from tests.simulated_files import LoseAll, disk_with

pytestmark = pytest.mark.whole


def loaded(certificate: Path | str, key: Path | str) -> QuicConfiguration:
    configuration = QuicConfiguration(is_client=False)
    certificates.load(configuration, Path(certificate), Path(key))
    return configuration


def test_one_is_made_once_and_kept(tmp_path: Path) -> None:
    files = certificates.own_certificate(tmp_path, "fujin")
    assert [path.name for path in files] == ["fujin-certificate.pem", "fujin-key.pem"]
    contents = [path.read_bytes() for path in files]
    assert certificates.own_certificate(tmp_path, "fujin") == files
    assert [path.read_bytes() for path in files] == contents
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o644, 0o600]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fujin-certificate.pem", "fujin-key.pem"]


def test_it_is_good_for_this_machine_and_whatever_the_clock_says(tmp_path: Path) -> None:
    certificate, key = certificates.own_certificate(tmp_path, "fujin")
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1"}
    assert (made.not_valid_before_utc.year, made.not_valid_after_utc.year) == (1970, 9999), "whatever the clock says"
    ssl.create_default_context().load_cert_chain(certificate, key)


@pytest.mark.parametrize(("valid_from", "valid_until"), [(-30, -1), (1, 30)], ids=["expired", "not yet valid"])
def test_a_certificate_that_clients_refuse_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, valid_from: int, valid_until: int
) -> None:
    certificate, key = self_signed(tmp_path, valid_from=valid_from, valid_until=valid_until)
    loaded(certificate, key)
    assert f"the certificate {certificate} is valid from 20" in caplog.text
    caplog.clear()
    assert server_context(TankSection(tls_certificate=certificate, tls_key=key)) is not None
    assert "clients refuse it" in caplog.text
    caplog.clear()
    loaded(*certificates.own_certificate(tmp_path, "fujin"))
    assert caplog.text == ""


def test_what_is_interrupted_is_begun_again(tmp_path: Path) -> None:
    """The key is written first: without the certificate it is of no use yet."""
    certificate, key = certificates.own_certificate(tmp_path, "fujin")
    certificate.unlink()
    (tmp_path / "fujin-key.pem.new").write_text("half")
    assert certificates.own_certificate(tmp_path, "fujin") == (certificate, key)
    loaded(certificate, key)


def test_a_certificate_without_its_key_is_told(tmp_path: Path) -> None:
    _, key = certificates.own_certificate(tmp_path, "fujin")
    key.unlink()
    with pytest.raises(ConfigError, match=r"fujin-key\.pem"):
        certificates.own_certificate(tmp_path, "fujin")


def test_fingerprints_are_those_of_openssl(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    raw = ssl.PEM_cert_to_DER_cert(Path(certificate).read_text())
    expected = hashlib.sha256(raw).hexdigest().upper()
    shown = certificates.fingerprint(loaded(certificate, key).certificate)
    assert shown.replace(":", "") == expected
    assert shown[2] == ":"


@pytest.mark.parametrize(
    "damage", ["missing", "missing key", "garbage", "garbage key", "swapped", "other key", "empty"]
)
def test_files_that_cannot_be_used(tmp_path: Path, damage: str) -> None:
    certificate, key = map(Path, self_signed(tmp_path))
    other = Path(self_signed(tmp_path, "other")[1])
    if damage == "missing":
        certificate.unlink()
    elif damage == "missing key":
        key.unlink()
    elif damage == "garbage":
        certificate.write_text("nonsense")
    elif damage == "garbage key":
        key.write_text("nonsense")
    elif damage == "swapped":
        certificate, key = key, certificate
    elif damage == "other key":
        key = other
    else:
        certificate.write_text("")
    with pytest.raises(ConfigError, match="TLS files"):
        loaded(certificate, key)


def test_a_certificate_is_never_on_disk_without_its_key(tmp_path: Path) -> None:
    """Power is lost before each call, and what was not synced is gone."""
    steps = 0
    while True:
        disk = disk_with(tmp_path)
        calls: list[str] = []

        def hook(call: str, path: Path) -> None:
            if len(calls) == steps:  # noqa: B023
                raise OSError(5, "the power is cut")
            calls.append(call)  # noqa: B023

        disk.hook = hook
        try:
            certificate, key = certificates.own_certificate(tmp_path, "fujin", disk)
        except OSError:
            is_made = False
        else:
            is_made = True
        for fate in (LoseAll(), *map(random.Random, range(5))):
            after = disk.after_power_cut(fate)
            names = set(after.list_dir(tmp_path)) & {"fujin-certificate.pem", "fujin-key.pem"}
            assert names != {"fujin-certificate.pem"}, f"after {calls}"
            assert not is_made or names == {certificate.name, key.name}
        if is_made:
            assert steps > 8
            return
        steps += 1


@pytest.mark.parametrize("part", [0, 1])
def test_a_flipped_bit_is_told_as_a_certificate_that_cannot_be_used(tmp_path: Path, part: int) -> None:
    files = certificates.own_certificate(tmp_path, "fujin")
    content = files[part].read_bytes()
    refused = 0
    for position in range(0, len(content), 7):
        files[part].write_bytes(content[:position] + bytes([content[position] ^ 0x21]) + content[position + 1 :])
        try:
            loaded(*files)
        except CertificateError:
            refused += 1
    assert refused > len(content) // 20

"""Certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(directory: Path, name: str = "test", *, valid_from: int = -1, valid_until: int = 30) -> tuple[str, str]:
    """(certificate, key) files of a certificate for 127.0.0.1 and localhost; valid in days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=valid_from))
        .not_valid_after(now + datetime.timedelta(days=valid_until))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(certificate_file), str(key_file)


class Authority:
    """A private authority in a directory; it signs certificates for servers and clients alike.

    Attributes:
        ca: its certificate's file.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self.ca, key_file = self_signed(directory, name, valid_until=365)
        self._issuer = x509.load_pem_x509_certificate(Path(self.ca).read_bytes()).subject
        key = serialization.load_pem_private_key(Path(key_file).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def signed(
        self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), valid_from: int = -1, until: int = 30
    ) -> tuple[str, str]:
        """(certificate, key) files of a certificate with this common name; valid in days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(self._issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=valid_from))
            .not_valid_after(now + datetime.timedelta(days=until))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate_file, key_file = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        raw = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        key_file.write_bytes(raw)
        return str(certificate_file), str(key_file)


def signed(directory: Path, name: str, authority: tuple[str, str], *, for_clients: bool = True) -> tuple[str, str]:
    """(certificate, key) files of a certificate with this common name and ``DNS:NAME.example``, signed by another."""
    issuer = x509.load_pem_x509_certificate(Path(authority[0]).read_bytes())
    issuer_key = serialization.load_pem_private_key(Path(authority[1]).read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.ExtendedKeyUsageOID.CLIENT_AUTH if for_clients else x509.ExtendedKeyUsageOID.SERVER_AUTH
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"{name}.example")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    certificate_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(certificate_file), str(key_file)

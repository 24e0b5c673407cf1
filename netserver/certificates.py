"""Certificates of QUIC listeners: from files, or a self-signed one that is made once and kept.

A self-signed certificate encrypts, and a client that has been given it (or its fingerprint) knows its server by it.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from pathlib import Path
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from netserver.errors import ConfigError

VALID_DAYS: Final = 20 * 365
"""Nobody would notice in time that a certificate that nobody signed has to be renewed."""


def own_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """(certificate, key) files ``NAME-certificate.pem`` and ``NAME-key.pem`` in ``directory``, made when missing.

    Raises:
        ConfigError: one of them is there without the other.
        OSError: they cannot be written.
    """
    certificate_file, key_file = directory / f"{name}-certificate.pem", directory / f"{name}-key.pem"
    if certificate_file.exists() and key_file.exists():
        return certificate_file, key_file
    if certificate_file.exists():
        raise ConfigError(f"{certificate_file} has no {key_file.name} beside it: restore it, or remove the certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    _write(
        key_file,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        0o600,
    )
    # Everybody may read it: clients of other users trust the server by it.
    _write(certificate_file, _self_signed(key, name).public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate_file, key_file


def _self_signed(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    host = socket.gethostname()
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    if host and host != "localhost" and host.isascii():
        names.append(x509.DNSName(host))
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"quintlog {name}")])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, hashes.SHA256())


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file, whole or not there."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # whatever the umask is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(configuration: QuicConfiguration, certificate_file: Path, key_file: Path) -> None:
    """Put certificate chain and key into a QUIC configuration.

    Raises:
        ConfigError: a file is missing, unreadable or not what it should be, or they do not belong together.
    """
    where = f"TLS files {certificate_file}, {key_file}"
    try:
        configuration.load_cert_chain(certificate_file, key_file)
        matches = configuration.certificate.public_key() == configuration.private_key.public_key()
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror or error}") from None
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ConfigError(f"{where}: not a certificate and its unencrypted key in PEM: {error}") from None
    if not matches:
        raise ConfigError(f"{where}: the key is not the certificate's")


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, as ``openssl x509 -fingerprint -sha256`` shows it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()

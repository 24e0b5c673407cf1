"""Certificates of QUIC listeners: from files, or a self-signed one that is made once and kept.

A self-signed certificate encrypts, and a client that has been given it (or its fingerprint) knows its server by it.
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.files.system import Files, SystemFiles, write_new_file
from netserver.access.exposed import warn_of_readers
from netserver.errors import CertificateError
from netserver.quic.inside import QuicConfiguration
from netserver.shell.tls import warn_of_dates

VALID: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
"""Always: nobody would notice in time that a certificate that nobody signed has to be renewed, and one that was dated
by a wrong clock would be refused for ever. The end is the one that RFC 5280 (4.1.2.5) has for "none"."""


def own_certificate(directory: Path, name: str, files: Files | None = None) -> tuple[Path, Path]:
    """(certificate, key) files ``NAME-certificate.pem`` and ``NAME-key.pem`` in ``directory``, made when missing.

    They are on disk, with their names, when this returns.

    Raises:
        CertificateError: one of them is there without the other.
        OSError: they cannot be written.
    """
    certificate_file, key_file = directory / f"{name}-certificate.pem", directory / f"{name}-key.pem"
    files = files or SystemFiles()
    has_certificate, has_key = files.exists(certificate_file), files.exists(key_file)
    if has_certificate and has_key:
        return certificate_file, key_file
    if has_certificate:
        raise CertificateError(
            f"{certificate_file} has no {key_file.name} beside it: restore it, or remove the certificate"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    write_new_file(  # durable before the certificate, which nobody could use without its key
        files,
        key_file,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        0o600,
    )
    # Everybody may read it: clients of other users trust the server by it.
    write_new_file(files, certificate_file, _self_signed(key, name).public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate_file, key_file


def _self_signed(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    host = socket.gethostname()
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    if host and host != "localhost" and host.isascii():
        names.append(x509.DNSName(host))
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"quintlog {name}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID[0])
        .not_valid_after(VALID[1])
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, hashes.SHA256())


def load(configuration: QuicConfiguration, certificate_file: Path, key_file: Path) -> None:
    """Put certificate chain and key into a QUIC configuration.

    Raises:
        CertificateError: a file is missing, unreadable or not what it should be, or they do not belong together.
    """
    where = f"TLS files {certificate_file}, {key_file}"
    try:
        configuration.load_cert_chain(certificate_file, key_file)
        matches = configuration.certificate.public_key() == configuration.private_key.public_key()
        warn_of_dates(certificate_file)
        warn_of_readers("the private key", key_file)
    except OSError as error:
        raise CertificateError(f"{where}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - parsers of a damaged file raise whatever they meet
        raise CertificateError(f"{where}: not a certificate and its unencrypted key in PEM: {error}") from None
    if not matches:
        raise CertificateError(f"{where}: the key is not the certificate's")


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, as ``openssl x509 -fingerprint -sha256`` shows it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()

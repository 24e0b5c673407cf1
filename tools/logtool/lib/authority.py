"""A private authority in a directory, and certificates of it for servers and clients.

========================= ======= ==========================================================
ca.pem                    0644    the authority's certificate: every client is given it
ca.key                    0600    its key: whoever has it can make certificates
NAME.pem                  0644    a certificate (``server.pem`` by default)
NAME.key                  0600    its key
========================= ======= ==========================================================
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from engine.files.system import SystemFiles, make_directory, write_new_file
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import CERTIFICATE_BYTES_MAX

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 397
"""The most that browsers and Apple's systems take; a year with time to renew."""
EARLIER: Final = timedelta(hours=1)
"""A certificate is valid from a little before it is made: the other side's clock may be late."""
CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key"
Kind = Literal["server", "client"]


@dataclass(frozen=True, slots=True)
class Issued:
    """Files that were made."""

    certificate: Path
    key: Path
    names: tuple[str, ...]
    not_after: datetime


def now() -> datetime:
    """As the system's clock says: certificates are about what clients' clocks say."""
    return datetime.now(UTC)


def make_authority(directory: Path, days: int = CA_DAYS) -> bool:
    """Make the authority, if the directory has none yet; whether it was made. Raises OSError."""
    make_directory(directory, 0o700)
    if (directory / CA_FILE).exists() or (directory / CA_KEY_FILE).exists():
        return False
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"quintlog authority {os.urandom(4).hex()}")])
    builder = (
        _builder(name, name, key.public_key(), now() + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    _write(directory / CA_KEY_FILE, directory / CA_FILE, key, builder.sign(key, hashes.SHA256()))
    return True


def issue(directory: Path, kind: Kind, name: str, hosts: Sequence[str], days: int = LEAF_DAYS) -> Issued:
    """Make a certificate and its key; those of the same name are replaced, which renews them.

    Args:
        name: of the files, and the certificate's common name.
        hosts: names and addresses that a server is dialled by, or further names of a client.

    Raises:
        Failure: the authority cannot be used, or would expire before.
        OSError: the files cannot be written.
    """
    authority, authority_key = _read_authority(directory)
    until = now() + timedelta(days=days)
    if until > authority.not_valid_after_utc:
        text = f"the authority in {directory} expires on {authority.not_valid_after_utc:%Y-%m-%d}, before that day"
        raise Failure(errors.REFUSED, "authority", text, "make another one in another directory, or take fewer --days")
    key = ec.generate_private_key(ec.SECP256R1())
    common = name if kind == "client" or not hosts else hosts[0]
    usage = ExtendedKeyUsageOID.SERVER_AUTH if kind == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common[:64])])
    builder = (
        _builder(subject, authority.subject, key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), critical=False)
    certificate_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    _write(key_file, certificate_file, key, builder.sign(authority_key, hashes.SHA256()))
    return Issued(certificate_file, key_file, tuple(hosts), until)


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a file. Raises Failure, OSError."""
    with path.open("rb") as file:
        content = file.read(CERTIFICATE_BYTES_MAX)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise Failure(errors.UNREACHABLE, "no_certificate", f"{path}: no certificate in PEM") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """The alternative names: hosts and addresses."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(getattr(name, "value", name)) for name in names]


def _read_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = read_certificate(directory / CA_FILE)
    try:
        key = serialization.load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise Failure(errors.UNREACHABLE, "authority", f"{directory / CA_KEY_FILE}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        text = f"{directory / CA_KEY_FILE} is not the key of {directory / CA_FILE}"
        raise Failure(errors.UNREACHABLE, "authority", text)
    return certificate, key


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        try:
            return x509.DNSName(host)
        except ValueError as error:
            raise Failure(errors.USAGE, "host", f"{host!r} is no host name or address: {error}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(key_file: Path, certificate_file: Path, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> None:
    """The key first: a certificate without its key is of no use to anybody."""
    files = SystemFiles()
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_new_file(files, key_file, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain), 0o600)
    write_new_file(files, certificate_file, made.public_bytes(encoding), 0o644)

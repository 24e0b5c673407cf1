"""Certificates that clients show over QUIC: are they of an authority of ours, and which names have they.

aioquic asks for one when told to (see `netserver.quic.bounded`), and checks that the client has its key; whose it is
nobody checks but this module, before the first byte of a stream is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from OpenSSL import crypto

from netserver.errors import CertificateError

BAD_CERTIFICATE = 0x100 + 42
"""TLS's alert, as QUIC carries it (RFC 9001, 4.8)."""
CERTIFICATE_REQUIRED = 0x100 + 116
CLIENTS = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}


class NotTrusted(Exception):
    """The certificate is not one that counts here; the text says why."""


def authorities(path: Path) -> crypto.X509Store:
    """The authorities of a PEM file.

    Raises:
        CertificateError: it cannot be read, or has none.
    """
    store = crypto.X509Store()
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
        for one in found:
            store.add_cert(crypto.X509.from_cryptography(one))
    except (OSError, ValueError, crypto.Error) as error:
        raise CertificateError(f"TLS file {path}: not certificates in PEM: {error}") from None
    return store


def names_of(
    certificate: x509.Certificate, chain: Sequence[x509.Certificate], trusted: crypto.X509Store
) -> tuple[str, ...]:
    """The names of a certificate, as ``netserver.shell.tls.certificate_names`` gives them.

    Raises:
        NotTrusted: it is of no authority of ours, is not valid now, or is not for clients.
    """
    try:
        others = [crypto.X509.from_cryptography(one) for one in chain]
        crypto.X509StoreContext(trusted, crypto.X509.from_cryptography(certificate), others).verify_certificate()
        for extension in certificate.extensions:
            if extension.oid == ExtensionOID.EXTENDED_KEY_USAGE and not CLIENTS & set(extension.value):
                raise NotTrusted("the certificate is not for clients")
        names = [f"CN={one.value!s}" for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return (*names, *_alternative_names(certificate))
    except crypto.X509StoreContextError as error:
        raise NotTrusted(str(error)) from None
    except (ValueError, crypto.Error) as error:
        raise NotTrusted(f"the certificate cannot be read: {error}") from None


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *(f"DNS:{name}" for name in found.get_values_for_type(x509.DNSName)),
        *(f"URI:{name}" for name in found.get_values_for_type(x509.UniformResourceIdentifier)),
        *(f"EMAIL:{name}" for name in found.get_values_for_type(x509.RFC822Name)),
        *(f"IP:{address}" for address in found.get_values_for_type(x509.IPAddress)),
    ]

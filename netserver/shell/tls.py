"""TLS contexts of the TCP listeners, loaded all or nothing and replaceable while the server runs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from engine.state.clock import wall_ms
from netserver.access.exposed import warn_of_readers
from netserver.config.clients import needs_certificate
from netserver.config.sections import PROTOCOL_SECTIONS, AdminSection, ServerConfig
from netserver.config.settings import ListenerSection
from netserver.errors import CertificateError
from netserver.shell.alerts import TellingContext

log = logging.getLogger("quintlog.tls")

TLS_SECTIONS: Final = frozenset({*PROTOCOL_SECTIONS, "admin"}) - {"fujin"}
"""What goes over TCP; QUIC carries its own TLS."""


def server_context(section: ListenerSection | AdminSection) -> TellingContext | None:
    """The context of a listener (TLS 1.2 or newer); None: it does not speak TLS.

    Raises:
        CertificateError: a file is missing, unreadable or not what it should be.
    """
    if not section.tls_certificate:
        return None
    context = TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.tls_certificate, section.tls_key)
        warn_of_readers("the private key", Path(section.tls_key))
        if section.tls_client_ca:
            context.load_verify_locations(section.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if needs_certificate(section) else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (section.tls_certificate, section.tls_key, section.tls_client_ca)))
        raise CertificateError(f"TLS files {files}: {error.strerror or error}") from None
    context.expires_at_s = warn_of_dates(Path(section.tls_certificate))
    return context


def warn_of_dates(certificate_file: Path) -> float:
    """Tells of a certificate that clients refuse because it is not valid now, as the system's clock says (theirs, too).

    Returns:
        when it expires, in seconds since 1970.

    Raises:
        ValueError: there is no certificate in the file.
    """
    from cryptography import x509  # not for servers without TLS

    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.fromtimestamp(wall_ms() / 1000, UTC)
    if not first <= now <= last:
        log.warning(
            "the certificate %s is valid from %s to %s, and now it is %s: clients refuse it; correct the clock or put "
            "another certificate there (of those that the server makes itself, remove certificate and key and restart)",
            certificate_file, *(f"{moment:%Y-%m-%d %H:%M:%SZ}" for moment in (first, last, now)),
        )  # fmt: skip
    return last.timestamp()


def section_of(config: ServerConfig, name: str) -> ListenerSection | AdminSection:
    """The section of a listener."""
    return config.admin if name == "admin" else config.listener(name)


class TlsContexts:
    """The contexts in force; a new connection uses the newest."""

    def __init__(self) -> None:
        self._contexts: dict[str, TellingContext | None] = {}

    @staticmethod
    def loaded(config: ServerConfig, names: Iterable[str]) -> dict[str, TellingContext | None]:
        """Contexts of some listeners as ``config`` has them, read from their files now.

        Raises:
            CertificateError: see ``server_context``; nothing has changed.
        """
        return {name: server_context(section_of(config, name)) for name in names if name in TLS_SECTIONS}

    def replace(self, contexts: dict[str, TellingContext | None]) -> None:
        """Use ``contexts`` from now on."""
        self._contexts = contexts

    def get(self, name: str) -> TellingContext | None:
        """The context of a listener."""
        return self._contexts.get(name)


def certificate_names(found: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of a client's certificate as `ssl.SSLSocket.getpeercert` gives it, in the form of the access file.

    They are ``CN=`` and the common name, then ``DNS:``, ``URI:``, ``EMAIL:`` and ``IP:`` with the alternative names.
    """
    if not found:
        return ()
    subject = [f"CN={value}" for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    kinds = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
    others = [f"{kinds[kind]}:{value}" for kind, value in found.get("subjectAltName", ()) if kind in kinds]
    return (*subject, *others)

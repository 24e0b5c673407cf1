"""TLS contexts of the TCP listeners, loaded all or nothing and replaceable while the server runs."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from netserver.config.settings import ListenerSection
from netserver.errors import CertificateError

TLS_SECTIONS: Final = frozenset(PROTOCOL_SECTIONS) - {"fujin"}
"""Protocols over TCP; QUIC carries its own TLS."""


def server_context(section: ListenerSection) -> ssl.SSLContext | None:
    """The context of a listener (TLS 1.2 or newer); None: it does not speak TLS.

    Raises:
        CertificateError: a file is missing, unreadable or not what it should be.
    """
    if not section.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.tls_certificate, section.tls_key)
        if section.tls_client_ca:
            context.load_verify_locations(section.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (section.tls_certificate, section.tls_key, section.tls_client_ca)))
        raise CertificateError(f"TLS files {files}: {error.strerror or error}") from None
    return context


class TlsContexts:
    """The contexts in force; a new connection uses the newest."""

    def __init__(self) -> None:
        self._contexts: dict[str, ssl.SSLContext | None] = {}

    @staticmethod
    def loaded(config: ServerConfig, names: Iterable[str]) -> dict[str, ssl.SSLContext | None]:
        """Contexts of some protocols as ``config`` has them, read from their files now.

        Raises:
            CertificateError: see ``server_context``; nothing has changed.
        """
        return {name: server_context(config.listener(name)) for name in names if name in TLS_SECTIONS}

    def replace(self, contexts: dict[str, ssl.SSLContext | None]) -> None:
        """Use ``contexts`` from now on."""
        self._contexts = contexts

    def get(self, name: str) -> ssl.SSLContext | None:
        """The context of a protocol."""
        return self._contexts.get(name)

"""TLS of the clients: the meaning of ``ca``, ``cert`` and ``key``, the same for every protocol, and its errors.

====== ====================================================================================================
ca     PEM file of the authorities that the server's certificate may be of (or that certificate itself);
       ``system``: those of the system; ``off``: no TLS, whatever the environment says
cert   PEM file with the client's own certificate and its chain; without ``ca`` the system's authorities count
key    PEM file with its private key; None: it is in ``cert`` too
====== ====================================================================================================

What is not given is taken from ``QUINTLOG_CA``, ``QUINTLOG_CERT`` and ``QUINTLOG_KEY`` (the last two as a pair).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from netserver.errors import TlsFailed

CA_VARIABLE: Final = "QUINTLOG_CA"
CERT_VARIABLE: Final = "QUINTLOG_CERT"
KEY_VARIABLE: Final = "QUINTLOG_KEY"
SYSTEM: Final = "system"
OFF: Final = "off"

_UNTRUSTED: Final = "its certificate is of no authority that is trusted here: ca= names the file of its authority"
_OF_VERIFY_CODE: Final = {
    9: ("dates", "its certificate is not valid yet: one of the two clocks is wrong, or it was made for later"),
    10: ("dates", "its certificate has expired: the server needs a new one"),
    18: ("untrusted", _UNTRUSTED),
    19: ("untrusted", _UNTRUSTED),
    20: ("untrusted", _UNTRUSTED),
    21: ("untrusted", _UNTRUSTED),
    62: ("host", "its certificate is not for this host name: dial a name that is in it, or give that as server_name="),
    64: ("host", "its certificate is not for this address: dial a name that is in it, or give that as server_name="),
}
"""X509_V_ERR_* of OpenSSL."""
_WANTED: Final = ("wanted", "the server wants a client certificate: cert= and key=")
_OF_ALERT: Final = {
    "CERTIFICATE_REQUIRED": _WANTED,
    "ALERT_UNKNOWN_CA": ("refused", "the server does not trust the authority of the client's certificate (cert=)"),
    "ALERT_CERTIFICATE_EXPIRED": ("refused", "the server says that the client's certificate (cert=) has expired"),
    "ALERT_CERTIFICATE_REVOKED": ("refused", "the server says that the client's certificate (cert=) was revoked"),
    "ALERT_BAD_CERTIFICATE": ("refused", "the server does not take the client's certificate (cert=)"),
    "ALERT_CERTIFICATE_UNKNOWN": ("refused", "the server does not take the client's certificate (cert=)"),
    "ALERT_ACCESS_DENIED": ("refused", "the server does not take the client's certificate (cert=)"),
    "ALERT_PROTOCOL_VERSION": ("version", "the server speaks no version of TLS that is safe (1.2 or newer)"),
    "UNSUPPORTED_PROTOCOL": ("version", "the server speaks no version of TLS that is safe (1.2 or newer)"),
}
"""Parts of OpenSSL's names for the alerts that a server sends."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """See the module; None is what nobody has said."""

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    @classmethod
    def found(
        cls,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """What is given, completed from the environment.

        Raises:
            ValueError: a key without a certificate.
        """
        get = (os.environ if environment is None else environment).get
        ca = ca or get(CA_VARIABLE) or None
        if not cert and not key:
            cert, key = get(CERT_VARIABLE) or None, get(KEY_VARIABLE) or None
        if key and not cert:
            raise ValueError(
                "key= is the private key of a certificate: cert= is missing (BlipMQ's own key is api_key=)"
            )
        return cls(ca, cert or None, key or None)

    @property
    def is_used(self) -> bool:
        """TLS is spoken."""
        return str(self.ca) != OFF and (self.ca is not None or self.cert is not None)

    @property
    def authorities(self) -> str | None:
        """The file of authorities; None: those of the system."""
        return None if self.ca is None or str(self.ca) in (SYSTEM, OFF) else str(self.ca)

    @property
    def own(self) -> tuple[str, str] | None:
        """Files of the client's certificate and its key; None: it has none."""
        return (str(self.cert), str(self.key or self.cert)) if self.cert is not None else None

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """What differs when a file was replaced. Raises OSError."""
        found = [os.stat(path) for path in (self.authorities, *(self.own or ())) if path is not None]
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)

    def context(self) -> ssl.SSLContext:
        """A context with these files, as they are now: TLS 1.2 or newer, server and host name checked.

        Raises:
            TlsFailed: a file is missing, unreadable or not what it should be.
        """
        try:
            context = ssl.create_default_context(cafile=self.authorities)
        except (OSError, ssl.SSLError) as error:
            raise unusable(self.authorities or "the system's authorities", error, "no certificates in PEM") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # ca= may be the server's own certificate
        if self.own is not None:
            try:
                context.load_cert_chain(*self.own, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                names = " and ".join(dict.fromkeys(self.own))
                raise unusable(names, error, "not a certificate and its unencrypted key in PEM") from error
        return context


def _no_password() -> str:
    """Called for an encrypted key: OpenSSL itself would ask on the terminal."""
    raise ValueError("the key is encrypted")


def unusable(names: str, error: Exception, otherwise: str) -> TlsFailed:
    """The error of files that cannot be used."""
    is_system = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    why = (error.strerror or str(error)).lower() if is_system and isinstance(error, OSError) else otherwise
    return TlsFailed(f"{names}: {why}", "files")


class ClientTls:
    """How one client speaks TLS; files that were replaced count from the next connection on.

    Args:
        given: a context to be used as it is.
        server_name: what the server's certificate must be for; None: the host that is dialled.
    """

    def __init__(self, files: TlsFiles, given: ssl.SSLContext | None = None, server_name: str | None = None) -> None:
        self.server_name = server_name
        self._files = files
        self._given = given
        self._made: tuple[tuple[tuple[int, int], ...], ssl.SSLContext] | None = None

    @property
    def has_certificate(self) -> bool:
        """The client may have one to show."""
        return self._files.cert is not None or self._given is not None

    def context(self) -> ssl.SSLContext:
        """For a connection that is made now.

        Raises:
            TlsFailed: a file cannot be used.
        """
        if self._given is not None:
            return self._given
        try:
            stamps = self._files.stamps()
        except OSError as error:
            raise unusable(str(error.filename), error, "") from error
        if self._made is None or self._made[0] != stamps:
            self._made = (stamps, self._files.context())
        return self._made[1]


def client_tls(
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    ssl_context: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> ClientTls | None:
    """The TLS of a client that was given these words; None: it speaks none.

    Raises:
        TlsFailed: a file cannot be used.
        ValueError: words that do not go together.
    """
    if ssl_context is not None:
        if ca or cert or key:
            raise ValueError("ssl_context= has all that ca=, cert= and key= say: give either")
        return ClientTls(TlsFiles(), ssl_context, server_name)
    files = TlsFiles.found(ca, cert, key)
    if not files.is_used:
        return None
    tls = ClientTls(files, server_name=server_name)
    tls.context()  # wrong files are told at once
    return tls


def explained(error: BaseException | None, has_certificate: bool) -> TlsFailed | None:
    """What an error of the TLS library means, in plain words; None: it is none, or says nothing that is certain.

    Args:
        has_certificate: the client had one to show.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        kind, text = _OF_VERIFY_CODE.get(
            error.verify_code, ("untrusted", f"its certificate cannot be verified: {error.verify_message}")
        )
        return TlsFailed(text, kind)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    for name, (kind, text) in _OF_ALERT.items():
        if name in reason:
            return TlsFailed(text, kind)
    if "ALERT_HANDSHAKE_FAILURE" in reason and not has_certificate:  # what TLS 1.2 has for "certificate required"
        return TlsFailed(*reversed(_WANTED))
    return None

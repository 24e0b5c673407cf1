"""The alert that says why a TLS handshake failed, which neither event loop sends.

Both close the connection at once and leave the alert in a buffer: a client without the certificate that is asked for
would see a connection that ends, and nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any

ACCEPTED: ContextVar[socket.socket] = ContextVar("ACCEPTED")
"""The socket of the connection that is set up in this context."""


class TellingObject(ssl.SSLObject):
    """Sends its alert itself."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """See ``ssl.SSLObject``."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            accepted, alert = ACCEPTED.get(None), self.outgoing.read()
            if accepted is not None and alert:
                with contextlib.suppress(OSError):  # it is gone, or takes nothing: then it is not told
                    accepted.send(alert)
            raise


class TellingContext(ssl.SSLContext):
    """A context whose connections tell their peers why they fail.

    Attributes:
        expires_at_s: when its certificate does, in seconds since 1970.
    """

    sslobject_class = TellingObject
    expires_at_s = 0.0

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext``."""
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, TellingObject)
        made.outgoing = outgoing
        return made

"""Errors of the network side: what clients raise, and what stops the server from starting.

Every client error says two things beside its text: ``retryable`` (the same call may succeed later) and ``stored``
(True: the records are on disk; False: they are not; None: nobody can know).
"""

from __future__ import annotations

from collections.abc import Sequence


class QuintlogError(Exception):
    """Base of all errors that the clients raise."""

    retryable: bool = False
    stored: bool | None = False


class ConnectionFailed(QuintlogError):
    """The server cannot be reached; nothing was sent."""

    retryable = True


class WrongServer(ConnectionFailed):
    """Something answers at the address, but not in this protocol: another port is meant."""

    retryable = False


class TlsFailed(ConnectionFailed):
    """No TLS connection comes about; the text says which setting of which side mends it.

    Args:
        kind: ``untrusted``, ``dates``, ``host`` (the server's certificate), ``wanted``, ``refused`` (the client's),
            ``files``, ``version``, ``tls`` (the server speaks it, the client does not), ``plain`` (the reverse).
    """

    retryable = False

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Timeout(QuintlogError, TimeoutError):
    """No answer in time; a record that had been sent may or may not be stored."""

    retryable = True
    stored = None


class Refused(QuintlogError):
    """The server answered no.

    Args:
        code: the protocol's own error code or name.
        text: the server's words (or ours, where the protocol has no text).
        retryable: the refusal is about the moment (no space, too many), not about the request.
        records: what of the request was refused, where it was about many.
    """

    def __init__(self, code: int | str, text: str, *, retryable: bool = False, records: Sequence[object] = ()) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text
        self.retryable = retryable
        self.records = records


class PublishRefused(Refused):
    """A server without words for it does not take what is published here: no right to, or a topic or record that it
    does not take. The client is over, and nothing that was waiting is stored.
    """

    def __init__(self, text: str) -> None:
        super().__init__("not_taken", text)


class Unknown(QuintlogError):
    """Records were sent and no acknowledgement was seen: they may or may not be stored.

    Args:
        records: those records, oldest first, as the caller gave them.
    """

    retryable = True
    stored = None

    def __init__(self, text: str, records: Sequence[object] = ()) -> None:
        super().__init__(text)
        self.records = records


class NotStored(QuintlogError):
    """The server could not store the record (no space, read-only partition)."""

    retryable = True


class TooLarge(QuintlogError):
    """The record or frame is above a limit.

    Args:
        limit_bytes: that limit.
    """

    def __init__(self, text: str, limit_bytes: int) -> None:
        super().__init__(text)
        self.limit_bytes = limit_bytes


class OutOfRange(QuintlogError):
    """The position asked for is no longer (or not yet) there.

    Args:
        first: first available position.
    """

    def __init__(self, text: str, first: int) -> None:
        super().__init__(text)
        self.first = first


class ProtocolError(QuintlogError):
    """The peer sent what the protocol does not allow.

    A server session raises it from ``received()``; what came before it counts (see ``netserver.shell.connection``).

    Args:
        kind: short fixed word for metrics ("frame_size", "malformed", ...); never made from the peer's bytes.
    """

    stored = None

    def __init__(self, text: str, kind: str = "malformed") -> None:
        super().__init__(text)
        self.kind = kind


class Closed(QuintlogError):
    """The client object was closed; ``stored`` is None for records that had been sent before."""


class ServerError(Exception):
    """The server cannot start or go on; the text says what happened and what to do.

    ``exit_code`` is the process's: 2 usage, 3 cannot open, 4 refused, 6 in use, 70 a bug.
    """

    exit_code: int = 3


class ConfigError(ServerError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = 2


class CertificateError(ConfigError):
    """A listener's certificate or key cannot be used; the other listeners can do without it."""


class ListenError(ServerError):
    """A listener cannot be bound."""

    exit_code = 6

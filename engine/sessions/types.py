"""What sessions, their applications and their owners share (see engine/sessions/store.py): errors, bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from engine.errors import EngineError

S = TypeVar("S")
M = TypeVar("M")

Transformer: TypeAlias = Callable[[S], tuple[M, S]]
ManyTransformer: TypeAlias = Callable[[S, int], tuple[Sequence[M], S]]
OnPut: TypeAlias = Callable[[EngineError | None, int, Sequence[M]], None]


class UnknownSession(EngineError):
    """No session of this name, or it has expired."""

    def __init__(self, uuid: str) -> None:
        super().__init__(f"Unknown client '{uuid}'")


class UnknownMessage(EngineError):
    """The session has no message of this id yet."""

    def __init__(self, message_id: int) -> None:
        super().__init__(f"Unknown message ID '{message_id}'")


class OutOfOrderAck(EngineError):
    """A later message was acknowledged before."""

    def __init__(self) -> None:
        super().__init__("Out-of-order ACK")


class SessionFull(EngineError):
    """The session holds as many unacknowledged messages as it may."""


class SessionReplaced(EngineError):
    """The session was rebuilt or removed while its message was being stored."""


class SessionCodec(Protocol[S, M]):
    """How an application's states and messages are stored: as values that msgpack can hold."""

    def pack_state(self, state: S) -> Any:
        """The stored form of a state."""

    def unpack_state(self, stored: Any) -> S:
        """The state of its stored form."""

    def pack_messages(self, messages: Sequence[M]) -> Any:
        """The stored form of messages that follow each other."""

    def unpack_messages(self, stored: Any, count: int) -> Sequence[M]:
        """The `count` messages of their stored form."""


class Owner(Protocol):
    """Who has a session, a connection for example."""

    def session_lost(self, uuid: str) -> None:
        """Another owner has taken the session, or it was removed."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Bounds of the sessions.

    Attributes:
        expiry_s: how long a session without an owner is kept.
        sessions_max: sessions at a time. Each takes about 1 KiB of memory and of disk.
        session_bytes_max: stored messages of one session, with what their blocks cost.
        total_bytes_max: the same of all sessions together. Beyond it a session may still hold its equal share of that,
            so that clients which never acknowledge do not stop the others; twice the bound is the worst.
        sweep_slice: sessions that one call of sweep() removes or stores: it must not hold up the owner thread.
    """

    expiry_s: float = 30.0
    sessions_max: int = 100_000
    session_bytes_max: int = 1 << 20
    total_bytes_max: int = 1 << 30
    sweep_slice: int = 500


@dataclass(frozen=True, slots=True)
class SessionInfo(Generic[S]):
    """A session as tools show it; `expires_in_s` is None while it has an owner."""

    uuid: str
    state: S
    last_id: int
    acknowledged_id: int
    stored_bytes: int
    expires_in_s: float | None

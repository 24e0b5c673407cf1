# cython: annotation_typing=False
"""How much memory connections may hold: publish bytes on their way to the disk, and half-received frames.

Both classes only count and call ``hold``/``release`` of the members they are given; they know no sockets. Compiled
where there is a compiler, since each publish is charged.
"""

from __future__ import annotations

from typing import Final, Protocol

from netserver.limits import SHARE_MIN_BYTES

SHARE: Final = "share of pending publishes"
TOTAL: Final = "total of pending publishes"
RECEIVE: Final = "receive buffers"


class Publisher(Protocol):
    """A connection as ``PublishPressure`` sees it."""

    charged: int

    def hold(self, reason: str) -> None: ...
    def release(self, reason: str) -> None: ...


class PublishPressure:
    """Bounds of the publish bytes that are not yet on disk.

    A member above its share stops being read until it is at half of it. The share is ``share_bytes_max``, less when
    many publish at once or half of the total is taken, so that all shares together stay at about that half: the other
    half is what keeps a quiet publisher from ever waiting for a flood. At the total everybody stops, until half of it
    is on disk.
    """

    __slots__ = ("active", "members", "over", "share_bytes_max", "stopped", "tight", "total", "total_bytes_max")

    def __init__(self, total_bytes_max: int, share_bytes_max: int) -> None:
        self.total_bytes_max = total_bytes_max
        self.share_bytes_max = share_bytes_max
        self.total = 0
        self.active = 0
        self.stopped = False
        self.tight = False
        self.members: set[Publisher] = set()
        self.over: set[Publisher] = set()

    def join(self, member: Publisher) -> None:
        """Count ``member`` from now on; it starts held when everybody is."""
        self.members.add(member)
        if self.stopped:
            member.hold(TOTAL)

    def leave(self, member: Publisher) -> None:
        """``member`` is gone; what it was charged counts until it is discharged."""
        self.members.discard(member)
        self.over.discard(member)

    def share_bytes(self) -> int:
        """What one member may have pending now."""
        if self.tight:
            return SHARE_MIN_BYTES
        fair = self.total_bytes_max // 2 // max(self.active, 1)
        return max(SHARE_MIN_BYTES, min(self.share_bytes_max, fair))

    def charge(self, member: Publisher, size_bytes: int) -> None:
        """``member`` has appended ``size_bytes``."""
        charged = member.charged
        if not charged and size_bytes:
            self.active += 1
        charged += size_bytes
        member.charged = charged
        self.total += size_bytes
        self.tight = self.total * 2 > self.total_bytes_max
        if charged > SHARE_MIN_BYTES and charged > self.share_bytes():
            self.over.add(member)
            member.hold(SHARE)
        if self.total >= self.total_bytes_max and not self.stopped:
            self.stopped = True
            for other in tuple(self.members):
                other.hold(TOTAL)

    def discharge(self, member: Publisher, size_bytes: int) -> None:
        """``size_bytes`` of ``member`` were stored or refused."""
        if not size_bytes:
            return
        charged = member.charged - size_bytes
        member.charged = charged
        self.total -= size_bytes
        self.tight = self.total * 2 > self.total_bytes_max
        if not charged:
            self.active -= 1
        if self.over and member in self.over and charged * 2 <= self.share_bytes():
            self.over.discard(member)
            member.release(SHARE)
        if self.stopped and not self.tight:
            self.stopped = False
            for other in tuple(self.members):
                other.release(TOTAL)


class Receiver(Protocol):
    """A connection as ``ReceiveBudget`` sees it."""

    retained: int
    reserved: int

    def grant(self) -> None:
        """The reservation that was asked for is made: read on."""

    def check_progress(self, now: float, window_s: float, least_bytes: int) -> None:
        """End it when its frame gained less than ``least_bytes`` in ``window_s``; ``now`` in monotonic seconds."""


class ReceiveBudget:
    """Bound of the memory for half-received frames of all connections together.

    A connection whose frame outgrows the shared read buffer reserves room for the whole of it before it is read on.
    So a connection with a reservation can finish without the others: if it makes no progress, its peer does not send.
    One that finds no room waits unread. Room goes to the smallest wish that fits. The one that has waited longest is
    *favoured*: it may exceed the bound, so that the largest frames make progress too. One is favoured at a time, so at
    most one frame is above the bound.

    Beside it the bytes that connections keep without a reservation are counted: rests of at most a read each.

    Attributes:
        tight: more than half is taken, or somebody waits: reads should be small.
        members: those with a reservation.
    """

    __slots__ = ("favoured", "kept", "members", "reserved", "tight", "total_bytes_max", "waiting")

    def __init__(self, total_bytes_max: int) -> None:
        self.total_bytes_max = total_bytes_max
        self.reserved = 0
        self.kept = 0
        self.tight = False
        self.favoured: Receiver | None = None
        self.members: set[Receiver] = set()
        self.waiting: dict[Receiver, int] = {}

    def keep(self, member: Receiver, size_bytes: int) -> None:
        """``member`` keeps ``size_bytes`` beside its reservation."""
        if size_bytes != member.retained:
            self.kept += size_bytes - member.retained
            member.retained = size_bytes
            self._look()

    def reserve(self, member: Receiver, size_bytes: int) -> bool:
        """Raise the reservation of ``member`` to ``size_bytes``; False: wait for ``grant``."""
        if self.reserved + size_bytes - member.reserved > self.total_bytes_max:
            if self.favoured is None:
                self.favoured = member
            elif self.favoured is not member:
                self.waiting[member] = size_bytes
                self._look()
                return False
        self._set(member, size_bytes)
        return True

    def release(self, member: Receiver) -> None:
        """The frame is complete."""
        if member.reserved:
            self._set(member, 0)
            if member is self.favoured:
                self.favoured = None
            self._wake()

    def leave(self, member: Receiver) -> None:
        """``member`` keeps nothing and wishes nothing any more."""
        self.waiting.pop(member, None)
        self.keep(member, 0)
        self.release(member)
        self._look()

    def _set(self, member: Receiver, size_bytes: int) -> None:
        self.reserved += size_bytes - member.reserved
        member.reserved = size_bytes
        if size_bytes:
            self.members.add(member)
        else:
            self.members.discard(member)
        self._look()

    def _look(self) -> None:
        self.tight = bool(self.waiting) or (self.reserved + self.kept) * 2 > self.total_bytes_max

    def _wake(self) -> None:
        while self.waiting:
            member, size_bytes = min(self.waiting.items(), key=lambda wish: wish[1])
            if self.reserved + size_bytes - member.reserved > self.total_bytes_max:
                if self.favoured is not None:
                    return
                member, size_bytes = next(iter(self.waiting.items()))
                self.favoured = member
            del self.waiting[member]
            self._set(member, size_bytes)
            member.grant()

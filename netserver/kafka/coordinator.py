"""Groups of consumers (the classic protocol): who is in them, and which of them reads what.

States::

    Empty -> PreparingRebalance               somebody joins; others have a moment to come, too
    PreparingRebalance -> CompletingRebalance all members have joined, or the longest of their times is over
    CompletingRebalance -> Stable             the leader has told who reads what
    CompletingRebalance -> Preparing          it has not, and the longest of their times is over: it is out
    Stable, Completing -> Preparing           somebody joins, leaves or is silent for too long
    any -> Empty                              the last one is gone

The members agree among themselves: the server hands what each says of itself to the leader, and what the leader says to
each; it reads none of it. All of it is in memory: after a restart members are unknown, and join anew.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .errors import Code
from .limits import (
    GROUPS_MAX,
    JOIN_DELAY_S,
    MEMBER_BYTES_MAX,
    MEMBERS_BYTES_MAX,
    MEMBERS_MAX,
    PENDING_MEMBERS_MAX,
    PROTOCOLS_MAX,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
)

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
DEAD: Final = "Dead"
NO_GENERATION: Final = -1


class GroupError(Exception):
    """Why a request of a member is not carried out.

    Attributes:
        member: the id that it is given, to come again with.
    """

    def __init__(self, code: Code, member: str = "") -> None:
        super().__init__(code.name)
        self.code = code
        self.member = member


class Joining(NamedTuple):
    """What a member says when it joins."""

    member: str
    instance: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    needs_id: bool
    """It has to come again with the id that it is given."""


class Joined(NamedTuple):
    """What it is told when all have joined."""

    generation: int
    protocol: str
    leader: str
    member: str
    members: list[tuple[str, str | None, bytes]]
    """Id, instance and what each says of itself: for the leader alone."""


@dataclass(slots=True, eq=False)
class Member:
    """One of a group."""

    id: str
    instance: str | None
    client_id: str
    host: str
    session_s: float
    rebalance_s: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[bytes] | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    was: str = ""
    """The id of the one whose place it has taken."""

    @property
    def size_bytes(self) -> int:
        """What it counts in ``Used``."""
        return len(self.assignment) + sum(len(name) + len(data) for name, data in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """What it says of itself under a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def fail(self, code: Code) -> None:
        """Whatever it waits for does not come."""
        for waiting in (self.joining, self.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(GroupError(code))
        self.joining = self.syncing = None


class Used:
    """What all members of all groups take together.

    Attributes:
        size_bytes: of what they say of themselves, and of what they were told to read.
    """

    def __init__(self) -> None:
        self.members = 0
        self.size_bytes = 0


class Group:
    """One group.

    Attributes:
        leader: id of the member that says who reads what.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, used: Used) -> None:
        self.name = name
        self._used = used
        self.state = EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self._loop = loop
        self._pending: dict[str, None] = {}  # ids that were given and not used yet, oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._gathers_until = 0.0  # the first members of a group wait for others

    # --- joining

    async def join(self, wanted: Joining) -> Joined:
        """Join, and wait for the others. Raises GroupError."""
        if not SESSION_MS_MIN <= wanted.session_ms <= SESSION_MS_MAX:
            raise GroupError(Code.SESSION_TIMEOUT)
        self._check_protocols(wanted)
        size_bytes = sum(len(name) + len(data) for name, data in wanted.protocols)
        if size_bytes > MEMBER_BYTES_MAX or self._used.size_bytes + size_bytes > MEMBERS_BYTES_MAX:
            raise GroupError(Code.GROUP_FULL)
        member = self._member(wanted)
        if (at_once := self._again(member, wanted)) is not None:
            return at_once
        self._used.size_bytes -= member.size_bytes
        member.protocols = wanted.protocols
        self._used.size_bytes += member.size_bytes
        member.session_s, member.rebalance_s = wanted.session_ms / 1000, wanted.rebalance_ms / 1000
        if member.joining is not None:
            member.fail(Code.REBALANCE)
        waiting: asyncio.Future[Joined] = self._loop.create_future()
        member.joining = waiting
        self.protocol_type = wanted.protocol_type
        self._touch(member)
        self._prepare()
        self._complete_if_all_are_there()
        return await waiting

    def _check_protocols(self, wanted: Joining) -> None:
        if not 0 < len(wanted.protocols) <= PROTOCOLS_MAX or not wanted.protocol_type:
            raise GroupError(Code.INCONSISTENT_PROTOCOL)
        others = [one for one in self.members.values() if one.id != wanted.member and not _is_same(one, wanted)]
        if others and (wanted.protocol_type != self.protocol_type or not _common([*others, wanted])):
            raise GroupError(Code.INCONSISTENT_PROTOCOL)

    def _member(self, wanted: Joining) -> Member:
        """The member that it is, perhaps a new one."""
        known = self.members.get(wanted.member)
        static = self._static(wanted.instance)
        if known is not None:
            if wanted.instance is not None and static is not known:
                raise GroupError(Code.FENCED_INSTANCE)
            return known
        if wanted.member:
            if static is not None:
                raise GroupError(Code.FENCED_INSTANCE)
            if wanted.member not in self._pending:
                raise GroupError(Code.UNKNOWN_MEMBER)
            del self._pending[wanted.member]
            return self._new(wanted.member, wanted)
        new_id = f"{wanted.instance or wanted.client_id}-{uuid.uuid4()}"
        if static is not None:
            return self._replace(static, new_id)
        if wanted.instance is None and wanted.needs_id:
            self._pending[new_id] = None
            if len(self._pending) > PENDING_MEMBERS_MAX:
                del self._pending[next(iter(self._pending))]
            raise GroupError(Code.MEMBER_ID_REQUIRED, new_id)
        return self._new(new_id, wanted)

    def _static(self, instance: str | None) -> Member | None:
        if instance is None:
            return None
        return next((one for one in self.members.values() if one.instance == instance), None)

    def _new(self, member_id: str, wanted: Joining) -> Member:
        if self._used.members >= MEMBERS_MAX:
            raise GroupError(Code.GROUP_FULL)
        self._used.members += 1
        member = Member(member_id, wanted.instance, wanted.client_id, wanted.host, 0, 0, [])
        self.members[member_id] = member
        if self.state == PREPARING and self._gathers_until:
            self._gathers_until = self._loop.time() + JOIN_DELAY_S
        return member

    def _replace(self, old: Member, new_id: str) -> Member:
        """The same instance has come anew: it takes the place of the old one, under another id."""
        old.fail(Code.FENCED_INSTANCE)
        if old.timer is not None:
            old.timer.cancel()
        member = Member(
            new_id, old.instance, old.client_id, old.host, old.session_s, old.rebalance_s, old.protocols,
            old.assignment, was=old.id,
        )  # fmt: skip
        self.members = {(new_id if one is old else one.id): (member if one is old else one)
                        for one in self.members.values()}  # fmt: skip
        if self.leader == old.id:
            self.leader = new_id
        return member

    def _again(self, member: Member, wanted: Joining) -> Joined | None:
        """What a member that says nothing new is told at once, where it changes nothing for others."""
        is_same = member.protocols == wanted.protocols
        is_static_anew = wanted.instance is not None and not wanted.member
        if is_same and (
            (self.state == STABLE and (is_static_anew or member.id != self.leader)) or self.state == COMPLETING
        ):
            member.session_s, member.rebalance_s = wanted.session_ms / 1000, wanted.rebalance_ms / 1000
            self._touch(member)
            answer = self._joined(member)
            if is_static_anew and self.state == STABLE:  # what to read is known: nobody has to say it again
                leader = member.was if self.leader == member.id else self.leader
                return answer._replace(members=[], leader=leader)
            return answer
        return None

    # --- a rebalance

    def _prepare(self) -> None:
        """Have all members join again."""
        if self.state == PREPARING:
            return
        is_first = self.state == EMPTY
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(GroupError(Code.REBALANCE))
            member.syncing = None
        self.state = PREPARING
        self._gathers_until = self._loop.time() + JOIN_DELAY_S if is_first else 0.0
        self._start(JOIN_DELAY_S if is_first else self._longest_s())

    def _longest_s(self) -> float:
        """How long those are waited for that have to join, or to sync."""
        return max((member.rebalance_s for member in self.members.values()), default=0.0)

    def _start(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        if self.state == COMPLETING:  # who is told what to read, or tells it, has to ask for it
            for member in [one for one in self.members.values() if one.syncing is None]:
                self._remove(member)
            return
        left_s = self._gathers_until - self._loop.time()
        if self._gathers_until and left_s > 0:
            self._start(left_s)
            return
        self._gathers_until = 0.0
        for member in [one for one in self.members.values() if one.joining is None]:
            self._forget(member)
        self._complete()

    def _complete_if_all_are_there(self) -> None:
        if self.state == PREPARING and not self._gathers_until and all(
            one.joining is not None for one in self.members.values()
        ):  # fmt: skip
            self._complete()

    def _complete(self) -> None:
        """All have joined: a new generation."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = EMPTY, "", ""
            return
        self.state = COMPLETING
        self.protocol = self._chosen()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in list(self.members.values()):
            waiting, member.joining = member.joining, None
            self._assign(member, b"")
            self._touch(member)
            if waiting is not None and not waiting.done():
                waiting.set_result(self._joined(member))
        self._start(self._longest_s())

    def _chosen(self) -> str:
        """The protocol that most like best of those that all have."""
        common = _common(list(self.members.values()))
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max(common, key=lambda name: votes[name])

    def _joined(self, member: Member) -> Joined:
        members = []
        if member.id == self.leader:
            members = [(one.id, one.instance, one.metadata(self.protocol)) for one in self.members.values()]
        return Joined(self.generation, self.protocol, self.leader, member.id, members)

    async def sync(self, member_id: str, instance: str | None, generation: int, assignments: dict[str, bytes]) -> bytes:
        """What a member is to read, once the leader has said so. Raises GroupError."""
        member = self.checked(member_id, instance, generation)
        if self.state == PREPARING:
            raise GroupError(Code.REBALANCE)
        self._touch(member)
        if self.state == STABLE:
            return member.assignment
        if member_id != self.leader:
            member.syncing = self._loop.create_future()
            return await member.syncing
        told = {one.id: assignments.get(one.id, b"") for one in self.members.values()}
        if self._used.size_bytes + sum(map(len, told.values())) > MEMBERS_BYTES_MAX:
            raise GroupError(Code.GROUP_FULL)
        for one in self.members.values():
            self._assign(one, told[one.id])
            waiting, one.syncing = one.syncing, None
            if waiting is not None and not waiting.done():
                self._touch(one)
                waiting.set_result(one.assignment)
        self.state = STABLE
        if self._timer is not None:
            self._timer.cancel()
        return member.assignment

    def _assign(self, member: Member, assignment: bytes) -> None:
        self._used.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    # --- being there

    def checked(self, member_id: str, instance: str | None, generation: int) -> Member:
        """A member of this generation. Raises GroupError: it is none."""
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(Code.UNKNOWN_MEMBER if self._static(instance) is None else Code.FENCED_INSTANCE)
        if instance is not None and member.instance != instance:
            raise GroupError(Code.FENCED_INSTANCE)
        if generation != self.generation:
            raise GroupError(Code.ILLEGAL_GENERATION)
        return member

    def heartbeat(self, member_id: str, instance: str | None, generation: int) -> None:
        """A member is there. Raises GroupError: also when it has to join again."""
        self._touch(self.checked(member_id, instance, generation))
        if self.state == PREPARING:
            raise GroupError(Code.REBALANCE)

    def may_commit(
        self, member_id: str, instance: str | None, generation: int, *, in_transaction: bool = False
    ) -> None:
        """Whether somebody may commit offsets now. Raises GroupError: not.

        A transaction is fenced by itself: it may have those of a group that it says nothing of, and of one whose
        members are just told what to read.
        """
        if generation < 0 and not member_id:
            if self.members and not in_transaction:
                raise GroupError(Code.UNKNOWN_MEMBER)
            return
        self._touch(self.checked(member_id, instance, generation))
        if self.state == COMPLETING and not in_transaction:
            raise GroupError(Code.REBALANCE)

    def leave(self, member_id: str, instance: str | None) -> None:
        """A member goes. Raises GroupError: it is none."""
        member = self.members.get(member_id) if member_id or instance is None else self._static(instance)
        if member is None:
            if member_id in self._pending:
                del self._pending[member_id]
                return
            raise GroupError(Code.UNKNOWN_MEMBER if self._static(instance) is None else Code.FENCED_INSTANCE)
        self._remove(member)

    def end(self) -> None:
        """The server stops, or nobody is in it: no timer goes on."""
        if self._timer is not None:
            self._timer.cancel()
        for member in self.members.values():
            if member.timer is not None:
                member.timer.cancel()

    def _touch(self, member: Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        member.timer = self._loop.call_later(member.session_s, self._silent, member)

    def _silent(self, member: Member) -> None:
        """Nothing was heard of it; one that waits for others is there, and can say nothing else meanwhile."""
        if member.joining is not None or (member.syncing is not None and not member.syncing.done()):
            self._touch(member)
        else:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        self._forget(member)
        if self.state in (STABLE, COMPLETING):
            self._prepare()
        if not self.members or self.state == PREPARING:
            if not self.members:
                self._gathers_until = 0.0
            self._complete_if_all_are_there()

    def _forget(self, member: Member) -> None:
        if self.members.pop(member.id, None) is not None:
            self._used.members -= 1
            self._used.size_bytes -= member.size_bytes
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        member.fail(Code.UNKNOWN_MEMBER)


def _is_same(member: Member, wanted: Joining) -> bool:
    return wanted.instance is not None and member.instance == wanted.instance


def _common(members: Sequence[Member | Joining]) -> list[str]:
    """Protocols that all of them have, as the first one likes them."""
    first, *others = members
    common = {name for name, _ in first.protocols}
    for one in others:
        common.intersection_update(name for name, _ in one.protocols)
    return [name for name, _ in first.protocols if name in common]


class Groups:
    """All groups of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._used = Used()
        self._groups: dict[str, Group] = {}

    def get(self, name: str) -> Group | None:
        """A group that somebody is in, or was."""
        return self._groups.get(name)

    def made(self, name: str) -> Group:
        """A group, made where there is none. Raises GroupError: there are too many."""
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                self._drop_empty()
            if len(self._groups) >= GROUPS_MAX:
                raise GroupError(Code.GROUP_FULL)
            group = self._groups[name] = Group(name, self._loop, self._used)
        return group

    def remove(self, name: str) -> None:
        """Forget one that nobody is in."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.end()

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def _drop_empty(self) -> None:
        for group in list(self._groups.values()):
            if not group.members:
                self.remove(group.name)

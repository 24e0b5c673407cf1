"""What members of groups ask, and those who look after groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from engine.errors import EngineError
from netserver.access.access import host_of
from netserver.access.rights import Right
from netserver.access.table import right_of

from .call import nothing
from .committed import Committed, Place
from .coordinator import DEAD, EMPTY, Group, GroupError, Joining
from .errors import Code
from .limits import CLIENT_ID_CHARS_MAX, COMMIT_METADATA_BYTES_MAX, COMMITTED_AT_ONCE, GROUP_NAME_BYTES_MAX
from .listener_state import NODE
from .schema import Encoded, Values
from .waiting import durable

if TYPE_CHECKING:
    from .call import Call

Found = TypeVar("Found")
Item = TypeVar("Item")
FETCH: Final = right_of("kafka", "OFFSET_FETCH")
KINDS: Final = (0, 1)
"""Of what has a coordinator: a group, a transactional id."""
ID_NEEDED_SINCE: Final = 4
"""Version of JoinGroup from which on a new member comes again with its id."""
MEMBERS_SINCE: Final = 3
"""Version of LeaveGroup from which on several members may leave."""


async def find_coordinator(call: Call) -> Values:
    """This server, for every group and transactional id."""
    where = call.shared.address(call.connection)
    if call.body["kind"] not in KINDS:
        text = f"{call.body['kind']} is no kind of coordinator"
        return {"error": Code.INVALID_REQUEST, "message": text, "node": -1, "host": "", "port": -1}
    return {"error": Code.NONE, "node": NODE, "host": where.host, "port": where.port}


def is_group_name(name: str) -> bool:
    """Whether a group may be called so."""
    return 0 < len(name.encode()) <= GROUP_NAME_BYTES_MAX


# --- members


def may_anything(call: Call, right: Right, name: str) -> bool:
    """Whether somebody has a right to anything at all; to what is seen later. Else it is refused for this name."""
    identity = call.visitor.identity
    if identity is not None and any(identity.globs(right)):
        return True
    call.visitor.refused(call.request.head.key.name, name)
    return False


async def may_be_in(call: Call) -> bool:
    """Whether somebody may subscribe to something, and to all that the group has committed offsets of."""
    visitor, name = call.visitor, call.body["group"]
    if not may_anything(call, Right.SUBSCRIBE, name):
        return False
    if all(visitor.may(Right.SUBSCRIBE, topic) for topic in await _topics_of(call, name)):
        return True
    visitor.refused(call.request.head.key.name, name)
    return False


async def _unless_ending(call: Call, work: Coroutine[Any, Any, Found]) -> Found:
    """Wait for others, but not when the server stops."""
    task = asyncio.ensure_future(work)
    call.on_ending = task.cancel
    if call.is_ending:
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        if call.is_ending:
            raise GroupError(Code.COORDINATOR_NOT_AVAILABLE) from None
        raise
    finally:
        call.on_ending = nothing


async def join_group(call: Call) -> Values:
    """Join a group, and wait until all have."""
    body = call.body
    if not is_group_name(body["group"]):
        return {"error": Code.INVALID_GROUP}
    if len(body["instance"] or "") > CLIENT_ID_CHARS_MAX:
        return {"error": Code.INVALID_REQUEST}
    if not await may_be_in(call):
        return {"error": Code.GROUP_FORBIDDEN}
    wanted = Joining(
        body["member"], body["instance"], call.request.client_id[:CLIENT_ID_CHARS_MAX], host_of(call.connection.peer),
        body["session_ms"], body["rebalance_ms"], body["protocol_type"],
        [(one["name"], one["metadata"]) for one in body["protocols"]],
        needs_id=call.request.head.version >= ID_NEEDED_SINCE,
    )  # fmt: skip
    try:
        joined = await _unless_ending(call, call.shared.groups.made(body["group"]).join(wanted))
    except GroupError as error:
        return {"error": error.code, "member": error.member or body["member"]}
    form = ("member", "instance", "metadata")
    members = [dict(zip(form, member, strict=True)) for member in joined.members]
    return joined._asdict() | {"error": Code.NONE, "members": members}


def _group(call: Call) -> Group:
    group = call.shared.groups.get(call.body["group"])
    if group is None:
        raise GroupError(Code.UNKNOWN_MEMBER)
    return group


async def sync_group(call: Call) -> Values:
    """What a member is to read."""
    body = call.body
    assignments = {one["member"]: one["assignment"] for one in body["assignments"]}
    try:
        syncing = _group(call).sync(body["member"], body["instance"], body["generation"], assignments)
        return {"error": Code.NONE, "assignment": await _unless_ending(call, syncing)}
    except GroupError as error:
        return {"error": error.code}


async def heartbeat(call: Call) -> Values:
    """A member is there."""
    body = call.body
    try:
        _group(call).heartbeat(body["member"], body["instance"], body["generation"])
    except GroupError as error:
        return {"error": error.code}
    return {"error": Code.NONE}


async def leave_group(call: Call) -> Values:
    """Members go. The names of static ones are no secrets, so that it needs the right to be in the group."""
    if not await may_be_in(call):
        return {"error": Code.GROUP_FORBIDDEN, "members": ()}
    if call.request.head.version < MEMBERS_SINCE:
        return {"error": _left(call, call.body["member"], None)}
    members = ({**one, "error": _left(call, one["member"], one["instance"])} for one in call.body["members"])
    return {"error": Code.NONE, "members": await call.encoded(call.form.inner["members"], members)}


def _left(call: Call, member: str, instance: str | None) -> Code:
    try:
        _group(call).leave(member, instance)
    except GroupError as error:
        return error.code
    return Code.NONE


# --- offsets


def _portions(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """So many at a time as become one change of the state."""
    left = iter(items)
    return iter(lambda: tuple(islice(left, COMMITTED_AT_ONCE)), ())


async def offset_commit(call: Call) -> Values:
    """Keep offsets; answered when they are on disk."""

    async def keep(places: dict[Place, Committed]) -> Code:
        shared = call.shared
        shared.forget_unused_groups()
        if not shared.offsets.has_room(len(places)):
            return Code.TOO_MANY_OFFSETS
        try:
            async for some in call.each(_portions(places.items())):
                await durable(partial(shared.offsets.commit, call.body["group"], dict(some)))
        except EngineError:
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE

    return await keep_offsets(call, commit_error(call), keep)


async def keep_offsets(call: Call, error: Code, keep: Callable[[dict[Place, Committed]], Awaitable[Code]]) -> Values:
    """The answer to a request with offsets of a group, those kept that may be; none if there is an error already."""
    places: dict[Place, Committed] = {}
    topics: dict[str, list[Values]] = {}
    kept: list[Values] = []
    request = call.request.head.key.name
    right = right_of("kafka", request)
    async for name, item in call.each(call.partitions()):
        result = {"index": item["index"], "error": error}
        topics.setdefault(name, []).append(result)
        place = call.shared.place(name, item["index"])
        if error:
            continue
        if not call.visitor.check(request, right, name.encode()):
            result["error"] = Code.TOPIC_FORBIDDEN
        elif place is None:
            result["error"] = Code.UNKNOWN_TOPIC
        elif len((item["metadata"] or "").encode()) > COMMIT_METADATA_BYTES_MAX:
            result["error"] = Code.METADATA_TOO_LARGE
        else:
            places[place] = Committed(item["offset"], item["metadata"], item["leader_epoch"])
            kept.append(result)
    if places and (error := await keep(places)):
        for result in kept:
            result["error"] = error
    return {"topics": await call.encoded_by_topic(topics.items())}


def commit_error(call: Call, *, in_transaction: bool = False) -> Code:
    """Why offsets of a group may not be kept now."""
    body = call.body
    group = call.shared.groups.get(body["group"])
    if not is_group_name(body["group"]):
        return Code.INVALID_GROUP
    if group is None:
        return Code.NONE if body["generation"] < 0 else Code.UNKNOWN_MEMBER
    try:
        group.may_commit(body["member"], body["instance"], body["generation"], in_transaction=in_transaction)
    except GroupError as error:
        return error.code
    return Code.NONE


async def offset_fetch(call: Call) -> Values:
    """What a group has committed: of the partitions that are asked for, or of all."""
    shared = call.shared
    group, has_open = call.body["group"], shared.transactions.has_offsets
    known = shared.offsets.of(group)
    asked = call.body["topics"]
    if asked is None:
        asked = {}
        async for topic_id, index in call.each(sorted(known)):
            topic = shared.catalog.by_id(topic_id)
            if topic is not None and call.visitor.may(FETCH, topic.name):
                asked.setdefault(topic.name.decode(), []).append(index)
        asked = [{"name": name, "partitions": partitions} for name, partitions in asked.items()]
    topics = []
    async for one in call.each(asked):
        topic = shared.topic(one["name"])
        is_allowed = call.visitor.check("OFFSET_FETCH", FETCH, one["name"].encode())
        results: list[Values] = []
        async for index in call.each(one["partitions"]):
            found = known.get((topic.id, index)) if topic is not None and is_allowed else None
            result = {"index": index, "metadata": "", "error": Code.NONE if is_allowed else Code.TOPIC_FORBIDDEN}
            if call.body["stable"] and topic is not None and is_allowed and has_open(group, (topic.id, index)):
                result["error"] = Code.UNSTABLE_OFFSET
            elif found is not None:
                result |= {"offset": found.offset, "leader_epoch": found.leader_epoch, "metadata": found.metadata or ""}
            results.append(result)
        topics.append((one["name"], results))
    return {"topics": await call.encoded_by_topic(topics), "error": Code.NONE}


# --- looking after groups


async def _topics_of(call: Call, name: str) -> list[bytes]:
    """The topics that a group has committed offsets of."""
    found: set[int] = set()
    async for some in call.each(_portions(list(call.shared.offsets.of(name)))):
        found.update(topic_id for topic_id, _ in some)
    topics = map(call.shared.catalog.by_id, found)
    return [topic.name for topic in topics if topic is not None]


async def _may(call: Call, right: Right, name: str) -> bool:
    """Whether somebody has a right to all that a group is about; to one that is about nothing who may do everything."""
    topics = await _topics_of(call, name)
    if not topics:
        return call.visitor.sees_everything
    return all(call.visitor.may(right, topic) for topic in topics)


async def list_groups(call: Call) -> Values:
    """Groups that somebody is in, or that have committed offsets."""
    shared = call.shared
    states = dict.fromkeys(shared.offsets.names, (EMPTY, ""))
    states |= {group.name: (group.state, group.protocol_type) for group in shared.groups}
    wanted = set(call.body["states"])
    groups = [
        {"group": name, "protocol_type": kind, "state": state}
        async for name, (state, kind) in call.each(states.items())
        if (not wanted or state in wanted) and await _may(call, FETCH, name)
    ]
    return {"error": Code.NONE, "groups": await call.encoded(call.form.inner["groups"], groups)}


async def describe_groups(call: Call) -> Values:
    """Who is in groups; one that nobody knows is dead."""
    form = call.form.inner["groups"]
    out = bytearray()
    async for name in call.each(call.body["groups"]):
        form.write(out, await _described(call, name))
    return {"groups": Encoded(len(call.body["groups"]), out)}


async def _described(call: Call, name: str) -> Values:
    group = call.shared.groups.get(name)
    is_known = group is not None or bool(call.shared.offsets.of(name))
    if is_known and not await _may(call, FETCH, name):
        return {"error": Code.GROUP_FORBIDDEN, "group": name}
    if group is None:
        return {"error": Code.NONE, "group": name, "state": EMPTY if is_known else DEAD}
    members = [
        {
            "member": one.id,
            "instance": one.instance,
            "client_id": one.client_id,
            "host": one.host,
            "metadata": one.metadata(group.protocol),
            "assignment": one.assignment,
        }
        for one in group.members.values()
    ]
    return {
        "error": Code.NONE,
        "group": name,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "members": members,
    }


async def delete_groups(call: Call) -> Values:
    """Forget groups that nobody is in, with their offsets."""
    form = call.form.inner["results"]
    out = bytearray()
    async for name in call.each(call.body["groups"]):
        form.write(out, {"group": name, "error": await _deleted(call, name)})
    return {"results": Encoded(len(call.body["groups"]), out)}


async def _deleted(call: Call, name: str) -> Code:
    shared = call.shared
    group = shared.groups.get(name)
    if group is None and not shared.offsets.of(name):
        return Code.GROUP_NOT_FOUND
    if not await _may(call, Right.MANAGE, name):
        call.visitor.refused("DELETE_GROUPS", name)
        return Code.GROUP_FORBIDDEN
    if group is not None and group.members:
        return Code.GROUP_NOT_EMPTY
    shared.groups.remove(name)
    try:
        async for some in call.each(_portions(list(shared.offsets.of(name)))):
            await durable(partial(shared.offsets.forget, name, some))
    except EngineError:
        return Code.COORDINATOR_NOT_AVAILABLE
    call.visitor.changed("DELETE_GROUPS", name)
    return Code.NONE

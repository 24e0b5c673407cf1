"""What producers that number their records ask, and those that publish in transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from netserver.access.rights import Right
from netserver.access.table import right_of

from .apis import Key
from .appending import new_producer_id
from .errors import Code
from .group_requests import commit_error, is_group_name, keep_offsets, may_anything, may_be_in
from .limits import TRANSACTION_MS_MAX, TRANSACTIONAL_ID_BYTES_MAX
from .schema import Values
from .transactions import TransactionError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .call import Call
    from .committed import Committed, Place

ADD: Final = right_of("kafka", "ADD_PARTITIONS_TO_TXN")
FENCED_SINCE: Final = {
    Key.INIT_PRODUCER_ID: 4, Key.ADD_PARTITIONS_TO_TXN: 2, Key.ADD_OFFSETS_TO_TXN: 2, Key.END_TXN: 2,
}  # fmt: skip
"""From which version on clients know that a producer is fenced; before it is an old epoch."""
LAST: Final = 1 << 15


async def _outcome(call: Call, work: Awaitable[object]) -> Code:
    """What became of something that is done to a transaction."""
    try:
        await work
    except TransactionError as error:
        return _code(call, error)
    except EngineError:
        return Code.COORDINATOR_NOT_AVAILABLE  # after which clients try again
    return Code.NONE


def _code(call: Call, error: TransactionError) -> Code:
    head = call.request.head
    is_known = head.version >= FENCED_SINCE.get(head.key, LAST)
    return Code.PRODUCER_FENCED if error.code == Code.OLD_EPOCH and is_known else error.code


async def init_producer_id(call: Call) -> Values:
    """A number for a producer; one with a transactional id has it again, with a higher epoch."""
    body = call.body
    name = body["transactional_id"]
    if name is None:
        return {"error": Code.NONE, "producer": new_producer_id(), "epoch": 0}
    if not name or len(name.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
        return {"error": Code.INVALID_REQUEST}
    if not 0 < body["timeout_ms"] <= TRANSACTION_MS_MAX:
        return {"error": Code.INVALID_TXN_TIMEOUT}
    if not may_anything(call, Right.PUBLISH, name):
        return {"error": Code.TRANSACTION_FORBIDDEN}
    transactions = call.shared.transactions
    try:
        given = await transactions.init(name, body["timeout_ms"], body["producer"], body["epoch"])
    except TransactionError as error:
        return {"error": _code(call, error)}
    except EngineError:
        return {"error": Code.COORDINATOR_NOT_AVAILABLE}
    return {"error": Code.NONE, "producer": given.producer, "epoch": given.epoch}


async def add_partitions_to_txn(call: Call) -> Values:
    """Partitions that a transaction will have records of: all that are asked for, or none."""
    body, shared = call.body, call.shared
    topics: list[tuple[str, list[Values]]] = []
    places: list[Place] = []
    is_good = True
    for topic in body["topics"]:
        name = topic["name"]
        is_allowed = call.visitor.check("ADD_PARTITIONS_TO_TXN", ADD, name.encode())
        results: list[Values] = []
        async for index in call.each(topic["partitions"]):
            place = shared.place(name, index)
            error = Code.NONE if is_allowed else Code.TOPIC_FORBIDDEN
            if place is not None:
                places.append(place)
            elif is_allowed:
                error = Code.UNKNOWN_TOPIC
            is_good = is_good and not error
            results.append({"index": index, "error": error})
        topics.append((name, results))
    error = Code.NOT_ATTEMPTED
    if is_good:
        work = shared.transactions.add(body["transactional_id"], body["producer"], body["epoch"], places)
        error = await _outcome(call, work)
    for _, results in topics:
        async for result in call.each(results):
            result["error"] = result["error"] or error
    return {"topics": await call.encoded_by_topic(topics)}


async def add_offsets_to_txn(call: Call) -> Values:
    """A group that a transaction will have offsets of."""
    body = call.body
    if not is_group_name(body["group"]):
        return {"error": Code.INVALID_GROUP}
    if not await may_be_in(call):
        return {"error": Code.GROUP_FORBIDDEN}
    work = call.shared.transactions.add(
        body["transactional_id"], body["producer"], body["epoch"], group=body["group"]
    )  # fmt: skip
    return {"error": await _outcome(call, work)}


async def txn_offset_commit(call: Call) -> Values:
    """Offsets of a group that are committed with a transaction."""
    body, transactions = call.body, call.shared.transactions
    whose = body["transactional_id"], body["producer"], body["epoch"], body["group"]

    async def keep(places: dict[Place, Committed]) -> Code:
        try:
            transactions.gather_offsets(transactions.may_have_offsets(*whose), body["group"], places)
        except TransactionError as error:
            return error.code
        return Code.NONE

    try:
        transactions.may_have_offsets(*whose)
    except TransactionError as error:
        return await keep_offsets(call, error.code, keep)
    return await keep_offsets(call, commit_error(call, in_transaction=True), keep)


async def end_txn(call: Call) -> Values:
    """Commit or abort a transaction; answered when that is on disk."""
    body = call.body
    work = call.shared.transactions.end(
        body["transactional_id"], body["producer"], body["epoch"], commit=body["commit"]
    )  # fmt: skip
    return {"error": await _outcome(call, work)}

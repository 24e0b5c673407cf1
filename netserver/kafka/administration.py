"""What changes topics: making, deleting and configuring them, and raising the start of their logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, InvalidConfig, LimitReached, TopicExists
from netserver.access.table import right_of

from .errors import Code
from .listener_state import NODE, is_new_name
from .schema import Encoded, Values
from .topic_config import configs_of, setting_of, settings_of
from .waiting import durable, opened

if TYPE_CHECKING:
    from engine.state.topic_entries import Topic
    from netserver.access.rights import Right

    from .call import Call

CREATE: Final = right_of("kafka", "CREATE_TOPICS")
DELETE: Final = right_of("kafka", "DELETE_TOPICS")
TRIM: Final = right_of("kafka", "DELETE_RECORDS")
GROW: Final = right_of("kafka", "CREATE_PARTITIONS")
CONFIGURE: Final = right_of("kafka", "INCREMENTAL_ALTER_CONFIGS")
TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resources that have configurations."""
SET: Final = 0
UNSET: Final = 1
"""Operations on a configuration; the others are about lists, of which there are none here."""
ALL_RECORDS: Final = -1


class Refused(Exception):
    """Why one of the things that a request asks for is not done."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


async def _outcome(work: Awaitable[object]) -> Values:
    """Error and message, of one of the things that a request asks for."""
    try:
        await work
    except Refused as refused:
        return {"error": refused.code, "message": str(refused)}
    except TopicExists as error:
        return {"error": Code.TOPIC_EXISTS, "message": str(error)}
    except InvalidConfig as error:
        return {"error": Code.INVALID_CONFIG, "message": str(error)}
    except LimitReached as error:
        return {"error": Code.POLICY, "message": str(error)}
    except EngineError as error:
        return {"error": Code.STORAGE, "message": str(error)}
    return {"error": Code.NONE, "message": None}


async def _each(call: Call, field: str, items: list[Values], work: Callable[[Values], Awaitable[object]]) -> Encoded:
    """The results of one thing after the other, in the array ``field`` of the answer."""
    form = call.form.inner[field]
    out = bytearray()
    async for item in call.each(items):
        form.write(out, item | await _outcome(work(item)))
    return Encoded(len(items), out)


def _topic(call: Call, name: str) -> Topic:
    topic = call.shared.topic(name)
    if topic is None:
        raise Refused(Code.UNKNOWN_TOPIC, f"no topic {name}")
    return topic


def _demand(call: Call, right: Right, name: str) -> None:
    if not call.visitor.check(call.request.head.key.name, right, name.encode()):
        raise Refused(Code.TOPIC_FORBIDDEN, f"{call.visitor.name} may not {right} {name}")


async def create_topics(call: Call) -> Values:
    """New topics, each on disk when it is told."""

    async def create(wanted: Values) -> None:
        name = wanted["name"]
        data = name.encode()
        _demand(call, CREATE, name)
        if not is_new_name(data):
            raise Refused(Code.INVALID_TOPIC, "a name is 1 to 249 of A-Za-z0-9._- and neither . nor ..")
        if call.shared.catalog.get(data) is not None:
            raise Refused(Code.TOPIC_EXISTS, f"topic {name} exists already")
        assigned = [one["brokers"] for one in wanted["assignments"]]
        if wanted["replicas"] not in (1, -1) or any(brokers != [NODE] for brokers in assigned):
            raise Refused(Code.INVALID_REPLICATION, "this server keeps one replica of everything, its own")
        count = len(assigned) or (1 if wanted["partitions"] == -1 else wanted["partitions"])
        if count < 1:
            raise Refused(Code.INVALID_PARTITIONS, "a topic has at least one partition")
        settings = settings_of(wanted["configs"], call.shared.log.config.topic)
        if call.body["validate_only"]:
            return
        call.visitor.make_topic("CREATE_TOPICS", data, count)
        make = partial(call.shared.catalog.create, data, partition_count=count, settings=settings)
        await durable(lambda done: make(on_durable=done, maker=call.connection.maker))
        call.visitor.changed("CREATE_TOPICS", data)

    return {"topics": await _each(call, "topics", call.body["topics"], create)}


async def delete_topics(call: Call) -> Values:
    """Topics and all of their records."""

    async def delete(item: Values) -> None:
        _demand(call, DELETE, item["name"])
        topic = _topic(call, item["name"])
        await durable(partial(call.shared.catalog.delete, topic))
        call.visitor.changed("DELETE_TOPICS", topic.name)

    return {"topics": await _each(call, "topics", [{"name": name} for name in call.body["names"]], delete)}


async def create_partitions(call: Call) -> Values:
    """A topic has the partitions that it was made with: where a record is follows from their number."""

    async def grow(item: Values) -> None:
        _demand(call, GROW, item["name"])
        topic = _topic(call, item["name"])
        raise Refused(
            Code.INVALID_PARTITIONS,
            f"topic {item['name']} was made with {topic.partition_count} partitions, and keeps these: make another one",
        )

    return {"topics": await _each(call, "topics", call.body["topics"], grow)}


async def delete_records(call: Call) -> Values:
    """Raise the start of logs."""
    topics: dict[str, list[Values]] = {}
    async for name, item in call.each(call.partitions()):
        result = {"index": item["index"], "log_start": -1}
        result |= await _outcome(_trim(call, name, item, result))
        topics.setdefault(name, []).append(result)
    return {"topics": await call.encoded_by_topic(topics.items())}


async def _trim(call: Call, name: str, item: Values, result: Values) -> None:
    _demand(call, TRIM, name)
    partition = call.shared.partition(name, item["index"])
    if partition is None:
        raise Refused(Code.UNKNOWN_TOPIC, f"no partition {item['index']} of {name}")
    await opened(partition)
    end = partition.committed_seq + 1
    if not ALL_RECORDS <= item["offset"] <= end:
        raise Refused(Code.OUT_OF_RANGE, f"{item['offset']} is none of {partition.log_start} to {end}")
    partition.trim(end if item["offset"] == ALL_RECORDS else item["offset"])
    result["log_start"] = partition.log_start
    call.visitor.changed("DELETE_RECORDS", partition.topic.name)


async def describe_configs(call: Call) -> Values:
    """What topics are configured with; this server has a file for that, and tells nothing of it here."""
    form = call.form.inner["results"]
    out = bytearray()
    async for item in call.each(call.body["resources"]):
        result = item | {"error": Code.NONE, "message": None, "configs": ()}
        topic = call.shared.topic(item["name"])
        if item["type"] == TOPIC and not call.visitor.may_see(item["name"].encode()):
            result["error"] = Code.TOPIC_FORBIDDEN
        elif item["type"] == TOPIC and topic is None:
            result["error"] = Code.UNKNOWN_TOPIC
        elif item["type"] == TOPIC and topic is not None:
            names = item["names"]
            result["configs"] = [one for one in configs_of(topic) if names is None or one["name"] in names]
        elif item["type"] != BROKER:
            result |= {"error": Code.INVALID_REQUEST, "message": "only topics have configurations here"}
        form.write(out, result)
    return {"results": Encoded(len(call.body["resources"]), out)}


async def incremental_alter_configs(call: Call) -> Values:
    """Other configurations of topics."""

    async def configure(item: Values) -> None:
        if item["type"] != TOPIC:
            raise Refused(Code.INVALID_REQUEST, "only topics have configurations here; see the server's own file")
        _demand(call, CONFIGURE, item["name"])
        topic = _topic(call, item["name"])
        changes: dict[str, str] = {}
        for config in item["configs"]:
            if config["operation"] not in (SET, UNSET):
                raise Refused(Code.INVALID_CONFIG, f"{config['name']} is no list")
            changes |= setting_of(config["name"], config["value"] if config["operation"] == SET else None)
        if not call.body["validate_only"] and changes:
            await durable(lambda done: call.shared.catalog.configure(topic, changes, done))
            call.visitor.changed("INCREMENTAL_ALTER_CONFIGS", topic.name)

    return {"results": await _each(call, "results", call.body["resources"], configure)}

"""What clients ask first: versions, where the server is, which topics there are. Topics are made by asking for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import EngineError, LimitReached, UnknownTopic

from .apis import APIS
from .errors import Code
from .listener_state import CLUSTER, NODE, is_new_name
from .schema import Encoded, Values

if TYPE_CHECKING:
    from engine.state.topic_entries import Topic

    from .call import Call

log = logging.getLogger("quintlog.kafka")


async def api_versions(call: Call) -> Values:
    """The requests that are spoken; those of ``APIS``. No features: one of them would change what clients send."""
    error = Code.NONE if call.request.head.is_spoken else Code.UNSUPPORTED_VERSION
    apis = APIS.values() if not error else [APIS[call.request.head.key]]
    return {"error": error, "apis": [{"key": api.key, "first": api.first, "last": api.last} for api in apis]}


async def metadata(call: Call) -> Values:
    """The only broker, and topics."""
    where = call.shared.address(call.connection)
    asked = call.body["topics"]
    if asked is None or (not asked and call.request.head.version == 0):
        topics = await _encoded(call, _all(call))
    else:
        topics = await _encoded(call, (_asked(call, one["name"]) for one in asked))
    return {
        "brokers": [{"id": NODE, "host": where.host, "port": where.port}],
        "cluster_id": CLUSTER,
        "controller": NODE,
        "topics": topics,
    }


def _all(call: Call) -> Iterator[tuple[str, Topic | Code]]:
    for topic in call.shared.catalog:
        try:
            name = topic.name.decode()
        except UnicodeDecodeError:  # which the protocol cannot spell
            continue
        if not topic.deleting and call.visitor.may_see(topic.name):
            yield name, topic


def _asked(call: Call, name: str | None) -> tuple[str, Topic | Code]:
    """A topic by its name, made where it may be."""
    if name is None:  # by an id, which no topic has
        return "", Code.UNKNOWN_TOPIC
    data, visitor = name.encode(), call.visitor
    topic = call.shared.topic(name)
    if topic is not None:
        return name, topic if visitor.may_see(data) else Code.TOPIC_FORBIDDEN
    if not visitor.may_see(data):
        visitor.refused("METADATA", data)
        return name, Code.TOPIC_FORBIDDEN
    if not is_new_name(data):
        return name, Code.INVALID_TOPIC
    if not call.body["auto_create"] or not call.shared.log.config.auto_create or not visitor.may_make(data):
        return name, Code.UNKNOWN_TOPIC
    try:
        visitor.make_topic("METADATA", data)
        return name, call.shared.catalog.get_or_create_to_read(data, call.connection.maker)
    except UnknownTopic:
        return name, Code.UNKNOWN_TOPIC
    except LimitReached as error:
        log.warning("%s: topic %s is not made: %s", call.connection.title, name, error)
        return name, Code.POLICY
    except EngineError:
        return name, Code.INVALID_TOPIC


async def _encoded(call: Call, topics: Iterator[tuple[str, Topic | Code]]) -> Encoded:
    form = call.form.inner["topics"]
    out = bytearray()
    count = 0
    async for entry in call.each({"found": found} for found in topics):
        name, found = entry["found"]
        if isinstance(found, Code):
            form.write(out, {"error": found, "name": name, "partitions": ()})
        else:
            partitions = await call.encoded(form.inner["partitions"], map(_partition, range(found.partition_count)))
            form.write(out, {"name": name, "partitions": partitions})
        count += 1
    return Encoded(count, out)


def _partition(index: int) -> Values:
    return {"index": index, "leader": NODE, "replicas": (NODE,), "isr": (NODE,)}

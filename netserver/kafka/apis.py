"""The requests that are spoken, and in which versions: one table for each, of all versions.

A higher version is a row here, not a function: raise ``last`` where the fields of that version are in the tables, and
where what it means is done. Versions are those that clients use of brokers of the last seven years; what each brings is
in ``docs/kafka.md``.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from .group_apis import GROUP_APIS
from .login_apis import LOGIN_APIS
from .schema import Array, Field, Structure
from .tables import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT32S,
    INT64,
    NO_ID,
    NO_OPERATIONS,
    RECORDS,
    STRING,
    TEXT,
    UUID,
    Api,
    Key,
    by_topic,
    throttle,
)
from .transaction_apis import TRANSACTION_APIS

__all__ = ["APIS", "NO_OPERATIONS", "Api", "Key", "request_form", "response_form"]

_API_VERSIONS: Final = Api(
    Key.API_VERSIONS, 0, 3, 3,
    (Field("software", STRING, 3, ""), Field("software_version", STRING, 3, "")),
    (
        Field("error", INT16),
        Field("apis", Array((Field("key", INT16), Field("first", INT16), Field("last", INT16)))),
        throttle(1),
    ),
)  # fmt: skip

_METADATA: Final = Api(
    Key.METADATA, 0, 10, 9,
    (
        Field("topics", Array((Field("id", UUID, 10, NO_ID), Field("name", TEXT)), is_nullable=True)),
        Field("auto_create", BOOL, 4, True),
        Field("cluster_operations", BOOL, 8, False),
        Field("topic_operations", BOOL, 8, False),
    ),
    (
        throttle(3),
        Field("brokers", Array((
            Field("id", INT32), Field("host", STRING), Field("port", INT32), Field("rack", TEXT, 1),
        ))),
        Field("cluster_id", TEXT, 2),
        Field("controller", INT32, 1),
        Field("topics", Array((
            Field("error", INT16),
            Field("name", TEXT),
            Field("id", UUID, 10, NO_ID),
            Field("internal", BOOL, 1, False),
            Field("partitions", Array((
                Field("error", INT16),
                Field("index", INT32),
                Field("leader", INT32),
                Field("leader_epoch", INT32, 7, -1),
                Field("replicas", INT32S),
                Field("isr", INT32S),
                Field("offline", INT32S, 5, ()),
            ))),
            Field("operations", INT32, 8, NO_OPERATIONS),
        ))),
        Field("operations", INT32, 8, NO_OPERATIONS),
    ),
)  # fmt: skip

_PRODUCE: Final = Api(
    Key.PRODUCE, 3, 8, 9,
    (
        Field("transactional_id", TEXT),
        Field("acks", INT16),
        Field("timeout_ms", INT32),
        Field("topics", by_topic(Field("records", RECORDS))),
    ),
    (
        Field("topics", by_topic(
            Field("error", INT16),
            Field("offset", INT64, 0, -1),
            Field("append_ms", INT64, 0, -1),
            Field("log_start", INT64, 5, -1),
            Field("record_errors", Array((Field("index", INT32), Field("message", TEXT))), 8, ()),
            Field("message", TEXT, 8),
        )),
        throttle(),
    ),
)  # fmt: skip

_FETCH: Final = Api(
    Key.FETCH, 4, 12, 12,
    (
        Field("replica", INT32, 0, -1),
        Field("wait_ms", INT32),
        Field("min_bytes", INT32),
        Field("max_bytes", INT32),
        Field("isolation", INT8),
        Field("session", INT32, 7, 0),
        Field("session_epoch", INT32, 7, -1),
        Field("topics", by_topic(
            Field("leader_epoch", INT32, 9, -1),
            Field("offset", INT64),
            Field("last_epoch", INT32, 12, -1),
            Field("log_start", INT64, 5, -1),
            Field("max_bytes", INT32),
        )),
        Field("forgotten", Array((Field("name", STRING), Field("partitions", INT32S))), 7, ()),
        Field("rack", STRING, 11, ""),
    ),
    (
        throttle(),
        Field("error", INT16, 7, 0),
        Field("session", INT32, 7, 0),
        Field("topics", by_topic(
            Field("error", INT16),
            Field("end", INT64, 0, -1),
            Field("stable_end", INT64, 0, -1),
            Field("log_start", INT64, 5, -1),
            Field("aborted", Array((Field("producer", INT64), Field("first", INT64))  , is_nullable=True)),
            Field("replica", INT32, 11, -1),
            Field("records", RECORDS),
        )),
    ),
)  # fmt: skip

_LIST_OFFSETS: Final = Api(
    Key.LIST_OFFSETS, 1, 7, 6,
    (
        Field("replica", INT32, 0, -1),
        Field("isolation", INT8, 2, 0),
        Field("topics", by_topic(Field("leader_epoch", INT32, 4, -1), Field("timestamp_ms", INT64))),
    ),
    (
        throttle(2),
        Field("topics", by_topic(
            Field("error", INT16),
            Field("timestamp_ms", INT64, 0, -1),
            Field("offset", INT64, 0, -1),
            Field("leader_epoch", INT32, 4, -1),
        )),
    ),
)  # fmt: skip

_CREATE_TOPICS: Final = Api(
    Key.CREATE_TOPICS, 2, 4, 5,
    (
        Field("topics", Array((
            Field("name", STRING),
            Field("partitions", INT32),
            Field("replicas", INT16),
            Field("assignments", Array((Field("partition", INT32), Field("brokers", INT32S)))),
            Field("configs", Array((Field("name", STRING), Field("value", TEXT)))),
        ))),
        Field("timeout_ms", INT32),
        Field("validate_only", BOOL),
    ),
    (
        throttle(),
        Field("topics", Array((Field("name", STRING), Field("error", INT16), Field("message", TEXT)))),
    ),
)  # fmt: skip

_DELETE_TOPICS: Final = Api(
    Key.DELETE_TOPICS, 1, 3, 4,
    (Field("names", Array(STRING)), Field("timeout_ms", INT32)),
    (throttle(), Field("topics", Array((Field("name", STRING), Field("error", INT16))))),
)  # fmt: skip

_DELETE_RECORDS: Final = Api(
    Key.DELETE_RECORDS, 0, 1, 2,
    (Field("topics", by_topic(Field("offset", INT64))), Field("timeout_ms", INT32)),
    (throttle(), Field("topics", by_topic(Field("log_start", INT64, 0, -1), Field("error", INT16)))),
)  # fmt: skip

_RESOURCE: Final = (Field("type", INT8), Field("name", STRING))

_DESCRIBE_CONFIGS: Final = Api(
    Key.DESCRIBE_CONFIGS, 1, 3, 4,
    (
        Field("resources", Array((*_RESOURCE, Field("names", Array(STRING, is_nullable=True))))),
        Field("synonyms", BOOL),
        Field("documentation", BOOL, 3, False),
    ),
    (
        throttle(),
        Field("results", Array((
            Field("error", INT16),
            Field("message", TEXT),
            *_RESOURCE,
            Field("configs", Array((
                Field("name", STRING),
                Field("value", TEXT),
                Field("read_only", BOOL),
                Field("source", INT8),
                Field("sensitive", BOOL),
                Field("synonyms", Array((Field("name", STRING), Field("value", TEXT), Field("source", INT8))), 0, ()),
                Field("type", INT8, 3, 0),
                Field("documentation", TEXT, 3),
            ))),
        ))),
    ),
)  # fmt: skip

_CREATE_PARTITIONS: Final = Api(
    Key.CREATE_PARTITIONS, 0, 1, 2,
    (
        Field("topics", Array((
            Field("name", STRING),
            Field("partitions", INT32),
            Field("assignments", Array((Field("brokers", INT32S),), is_nullable=True)),
        ))),
        Field("timeout_ms", INT32),
        Field("validate_only", BOOL),
    ),
    (
        throttle(),
        Field("topics", Array((Field("name", STRING), Field("error", INT16), Field("message", TEXT)))),
    ),
)  # fmt: skip

_INCREMENTAL_ALTER_CONFIGS: Final = Api(
    Key.INCREMENTAL_ALTER_CONFIGS, 0, 0, 1,
    (
        Field("resources", Array((
            *_RESOURCE,
            Field("configs", Array((Field("name", STRING), Field("operation", INT8), Field("value", TEXT)))),
        ))),
        Field("validate_only", BOOL),
    ),
    (throttle(), Field("results", Array((Field("error", INT16), Field("message", TEXT), *_RESOURCE)))),
)  # fmt: skip

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        _PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _API_VERSIONS, _CREATE_TOPICS, _DELETE_TOPICS, _DELETE_RECORDS,
        *TRANSACTION_APIS, _DESCRIBE_CONFIGS, _CREATE_PARTITIONS, _INCREMENTAL_ALTER_CONFIGS, *GROUP_APIS, *LOGIN_APIS,
    )
}  # fmt: skip
"""By number, in the order in which they are announced."""


@cache
def request_form(key: int, version: int) -> Structure:
    """The body of a request."""
    api = APIS[key]
    return Structure(api.request, version, flexible=version >= api.flexible)


@cache
def response_form(key: int, version: int) -> Structure:
    """The body of an answer."""
    api = APIS[key]
    return Structure(api.response, version, flexible=version >= api.flexible)

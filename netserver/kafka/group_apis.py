"""The requests of groups of consumers: the classic protocol; see ``netserver.kafka.apis``."""

from __future__ import annotations

from typing import Final

from .schema import Array, Field
from .tables import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT32S,
    INT64,
    NO_OPERATIONS,
    STRING,
    TEXT,
    Api,
    Key,
    by_topic,
    throttle,
)

_OFFSET_COMMIT: Final = Api(
    Key.OFFSET_COMMIT, 2, 7, 8,
    (
        Field("group", STRING),
        Field("generation", INT32),
        Field("member", STRING),
        Field("instance", TEXT, 7),
        Field("retention_ms", INT64, 2, -1, 4),
        Field("topics", by_topic(Field("offset", INT64), Field("leader_epoch", INT32, 6, -1), Field("metadata", TEXT))),
    ),
    (throttle(3), Field("topics", by_topic(Field("error", INT16)))),
)  # fmt: skip

_OFFSET_FETCH: Final = Api(
    Key.OFFSET_FETCH, 1, 7, 6,
    (
        Field("group", STRING),
        Field("topics", Array((Field("name", STRING), Field("partitions", INT32S)), is_nullable=True)),
        Field("stable", BOOL, 7, False),
    ),
    (
        throttle(3),
        Field("topics", by_topic(
            Field("offset", INT64, 0, -1),
            Field("leader_epoch", INT32, 5, -1),
            Field("metadata", TEXT),
            Field("error", INT16),
        )),
        Field("error", INT16, 2, 0),
    ),
)  # fmt: skip

_FIND_COORDINATOR: Final = Api(
    Key.FIND_COORDINATOR, 0, 2, 3,
    (Field("key", STRING), Field("kind", INT8, 1, 0)),
    (
        throttle(1),
        Field("error", INT16),
        Field("message", TEXT, 1),
        Field("node", INT32),
        Field("host", STRING),
        Field("port", INT32),
    ),
)  # fmt: skip

_JOIN_GROUP: Final = Api(
    Key.JOIN_GROUP, 2, 5, 6,
    (
        Field("group", STRING),
        Field("session_ms", INT32),
        Field("rebalance_ms", INT32),
        Field("member", STRING),
        Field("instance", TEXT, 5),
        Field("protocol_type", STRING),
        Field("protocols", Array((Field("name", STRING), Field("metadata", BYTES)))),
    ),
    (
        throttle(),
        Field("error", INT16),
        Field("generation", INT32, 0, -1),
        Field("protocol", STRING, 0, ""),
        Field("leader", STRING, 0, ""),
        Field("member", STRING, 0, ""),
        Field("members", Array((Field("member", STRING), Field("instance", TEXT, 5), Field("metadata", BYTES))), 0, ()),
    ),
)  # fmt: skip

_MEMBER: Final = (
    Field("group", STRING), Field("generation", INT32), Field("member", STRING), Field("instance", TEXT, 3),
)  # fmt: skip

_HEARTBEAT: Final = Api(Key.HEARTBEAT, 0, 3, 4, _MEMBER, (throttle(1), Field("error", INT16)))

_LEAVE_GROUP: Final = Api(
    Key.LEAVE_GROUP, 0, 3, 4,
    (
        Field("group", STRING),
        Field("member", STRING, 0, "", 2),
        Field("members", Array((Field("member", STRING), Field("instance", TEXT))), 3),
    ),
    (
        throttle(1),
        Field("error", INT16),
        Field("members", Array((Field("member", STRING), Field("instance", TEXT), Field("error", INT16))), 3, ()),
    ),
)  # fmt: skip

_SYNC_GROUP: Final = Api(
    Key.SYNC_GROUP, 0, 3, 4,
    (*_MEMBER, Field("assignments", Array((Field("member", STRING), Field("assignment", BYTES))))),
    (throttle(1), Field("error", INT16), Field("assignment", BYTES, 0, b"")),
)  # fmt: skip

_DESCRIBE_GROUPS: Final = Api(
    Key.DESCRIBE_GROUPS, 0, 4, 5,
    (Field("groups", Array(STRING)), Field("operations", BOOL, 3, False)),
    (
        throttle(1),
        Field("groups", Array((
            Field("error", INT16),
            Field("group", STRING),
            Field("state", STRING, 0, ""),
            Field("protocol_type", STRING, 0, ""),
            Field("protocol", STRING, 0, ""),
            Field("members", Array((
                Field("member", STRING),
                Field("instance", TEXT, 4),
                Field("client_id", STRING),
                Field("host", STRING),
                Field("metadata", BYTES),
                Field("assignment", BYTES),
            )), 0, ()),
            Field("operations", INT32, 3, NO_OPERATIONS),
        ))),
    ),
)  # fmt: skip

_LIST_GROUPS: Final = Api(
    Key.LIST_GROUPS, 0, 4, 3,
    (Field("states", Array(STRING), 4, ()),),
    (
        throttle(1),
        Field("error", INT16),
        Field("groups", Array((Field("group", STRING), Field("protocol_type", STRING), Field("state", STRING, 4, "")))),
    ),
)  # fmt: skip

_DELETE_GROUPS: Final = Api(
    Key.DELETE_GROUPS, 0, 1, 2,
    (Field("groups", Array(STRING)),),
    (throttle(), Field("results", Array((Field("group", STRING), Field("error", INT16))))),
)  # fmt: skip

GROUP_APIS: Final = (
    _OFFSET_COMMIT, _OFFSET_FETCH, _FIND_COORDINATOR, _JOIN_GROUP, _HEARTBEAT, _LEAVE_GROUP, _SYNC_GROUP,
    _DESCRIBE_GROUPS, _LIST_GROUPS, _DELETE_GROUPS,
)  # fmt: skip

"""JSON schemas (2020-12) of the documents that admin HTTP takes and gives, by name, as OpenAPI has them.

What is given is listed whole: an answer with a field that is not here fails the tests.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
WHOLE: Final[Schema] = {"type": "integer"}


def optional(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """A list of such."""
    return {"type": "array", "items": schema}


def mapped(schema: Schema) -> Schema:
    """An object with such under any name."""
    return {"type": "object", "additionalProperties": schema}


def ref(name: str) -> Schema:
    """The schema of this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def document(needed: dict[str, Schema], more: dict[str, Schema] | None = None) -> Schema:
    """An object with these fields, perhaps with ``more``, and with no other."""
    return {
        "type": "object",
        "properties": needed | (more or {}),
        "required": list(needed),
        "additionalProperties": False,
    }


def items(schema: Schema) -> Schema:
    """``{"schema": 1, "items": [..]}``."""
    return document({"schema": {"const": 1}, "items": listed(schema)})


def named(name: str) -> dict[str, Schema]:
    """Bytes: ``name`` when they are UTF-8, else ``name_base64``."""
    return {name: TEXT, f"{name}_base64": {"type": "string", "contentEncoding": "base64"}}


SETTING_VALUE: Final[Schema] = {"anyOf": [TEXT, WHOLE, FLAG, listed(TEXT), mapped(mapped(TEXT))]}
NAME: Final = named("name")
VALUE: Final = named("value")
NULLABLE_VALUE: Final = VALUE | {"value": optional(TEXT)}
POSITION: Final[Schema] = {"anyOf": [TEXT, WHOLE]}
POSITION_FIELDS: Final = {
    "id": optional(COUNT),
    "partition": COUNT,
    "next_offset": COUNT,
    "acknowledged_offset": optional(COUNT),
    "unacknowledged": COUNT,
    "lag": optional(COUNT),
    "lag_seconds": optional(NUMBER),
    "lag_trend": optional(NUMBER),
    "paused": FLAG,
}
CHECKED: Final = dict.fromkeys(
    ("partition", "segments", "batches", "records", "first", "last", "bytes", "findings"), COUNT
)
REMOTE: Final = document(
    dict.fromkeys(("url", "phase", "problem", "lineage"), TEXT)
    | dict.fromkeys(("epoch", "version", "commits", "lag_records", "lag_bytes"), COUNT)
    | {"lag_seconds": NUMBER}
)
FOUND_AT: Final = dict.fromkeys(("partition", "position", "end", "first", "last"), COUNT) | named("topic")
BACKUP: Final = {"backup": TEXT} | dict.fromkeys(
    ("topics", "partitions_with_records", "records", "files", "bytes", "damaged"), COUNT
)
GLOBS: Final = listed(TEXT)
IDENTITY: Final = {
    "publish": GLOBS,
    "subscribe": GLOBS,
    "create": GLOBS,
    "manage": GLOBS,
    "listeners": GLOBS,
    "certificates": GLOBS,
    "networks": GLOBS,
    "role": TEXT,
    "anyone": FLAG,
    "quotas": mapped(COUNT),
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": document(
        {"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT, "code": TEXT},
    ),
    "Version": document({"schema": {"const": 1}, "version": TEXT}),
    "Status": document(
        {
            "schema": {"const": 1},
            "version": TEXT,
            "pid": WHOLE,
            "ready": FLAG,
            "started": NUMBER,
            "restart_needed": listed(TEXT),
            "uptime_seconds": NUMBER,
            "data_dir": TEXT,
            "listeners": mapped(TEXT),
            "tls": listed(TEXT),
            "failed_listeners": mapped(TEXT),
            "connections": mapped(COUNT),
            "connections_max": COUNT,
            "topics": COUNT,
            "partitions": COUNT,
            "pending_bytes": COUNT,
            "records_published": COUNT,
            "disk_free_bytes": COUNT,
            "disk_size_bytes": COUNT,
            "remote": optional(REMOTE),
        },
    ),
    "Partition": document(
        {"partition": COUNT, "open": FLAG},
        {
            "first_offset": COUNT,
            "next_offset": COUNT,
            "records": COUNT,
            "size_bytes": COUNT,
            "error": TEXT,
            "no_space": FLAG,
        },
    ),
    "Topic": document(
        {
            "id": WHOLE,
            "created_ms": WHOLE,
            "partitions": COUNT,
            "settings": mapped(TEXT),
            "config": mapped(TEXT),
            "partition_details": listed(ref("Partition")),
        },
        NAME,
    ),
    "NewTopic": document({}, {**NAME, "partitions": COUNT, "config": mapped({})}),
    "TopicSettings": document({"config": mapped({})}),
    "Deleted": document({"deleted": document({}, NAME)}),
    "Trim": document({"before": COUNT}, {"partition": COUNT}),
    "Trimmed": document({"partition": COUNT, "first_offset": COUNT, "segments_removed": COUNT}),
    "NewRecord": document(
        {},
        {
            **VALUE,
            "value_json": {},
            **named("key"),
            "timestamp_ms": COUNT,
            "partition": COUNT,
            "headers": listed(document({}, NAME | VALUE)),
        },
    ),
    "NewRecords": document({"records": listed(ref("NewRecord"))}, {"partition": COUNT, "qos0": FLAG}),
    "Offsets": document({"partition": COUNT, "first_offset": COUNT, "last_offset": COUNT}),
    "Stored": document(
        {
            "schema": {"const": 1},
            "records": COUNT,
            "partitions": listed(
                document({"partition": COUNT, "first_offset": COUNT, "last_offset": COUNT, "records": COUNT})
            ),
        }
    ),
    "Record": document(
        {"partition": COUNT, "offset": COUNT, "timestamp_ms": COUNT},
        {**named("key"), **NULLABLE_VALUE, "headers": listed(document({}, NAME | NULLABLE_VALUE))},
    ),
    "Remark": document({"partition": COUNT, "first_offset": COUNT, "last_offset": COUNT, "remark": TEXT}),
    "ConsoleLogin": document({"path": TEXT, "expires_seconds": NUMBER}),
    "Progress": document({"progress": document({"scanned": COUNT, "total": COUNT})}),
    "Segment": document(
        {
            "partition": COUNT,
            "file": TEXT,
            "state": {"enum": ["sealed", "active"]},
            "first_offset": COUNT,
            "last_offset": COUNT,
            "records": COUNT,
            "size_bytes": COUNT,
            "created_ms": WHOLE,
            "newest_ms": WHOLE,
        }
    ),
    "NewBackup": document({"name": TEXT}),
    "Reloading": document({"reloading": FLAG}),
    "UpkeepEvent": {
        "anyOf": [
            document({"progress": document({"done_bytes": COUNT, "total_bytes": COUNT})}),
            document({"checked": document(CHECKED, named("topic"))}),
            document({"finding": document({"kind": TEXT, "file": TEXT, "reason": TEXT}, FOUND_AT)}),
            document({"segment": {"type": "object"}}),
            document({"batch": {"type": "object"}}),
            document({"record": ref("Record")}),
            document({"backup": document(BACKUP)}),
            *(document({name: TEXT}) for name in ("note", "damage", "problem")),
            document({"done": FLAG}),
            document({"error": document({"exit_code": COUNT, "code": TEXT, "message": TEXT})}),
        ]
    },
    "Damage": document(
        {
            "schema": {"const": 1},
            "damaged_batches": COUNT,
            "damaged_records": COUNT,
            "lost_records": COUNT,
            "sync_failures": COUNT,
            **dict.fromkeys(
                ("unopened", "read_only", "retention_failing"),
                listed(document({"partition": TEXT, "problem": TEXT})),
            ),
        }
    ),
    "Setting": document(
        {
            "section": TEXT,
            "name": TEXT,
            "value": SETTING_VALUE,
            "default": SETTING_VALUE,
            "origin": TEXT,
            "reloadable": FLAG,
            "variable": TEXT,
            "help": TEXT,
        }
    ),
    "Connection": document(
        {
            "number": COUNT,
            "protocol": TEXT,
            "peer": TEXT,
            "opened": NUMBER,
            "bytes_in": COUNT,
            "bytes_out": COUNT,
            "pending_bytes": COUNT,
            "receive_bytes": COUNT,
            "held": listed(TEXT),
        },
        {"identity": optional(TEXT)},
    ),
    "Session": document(
        {
            "uuid": TEXT,
            "application": {"enum": ["numbers", "records"]},
            "left": optional(COUNT),
            "last_id": COUNT,
            "acknowledged_id": COUNT,
            "unacknowledged": COUNT,
            "stored_bytes": COUNT,
            "connected": optional(FLAG),
            "expires_in_seconds": optional(NUMBER),
        },
        {"topic": optional(TEXT), "topic_base64": TEXT, "offset": COUNT},
    ),
    "Subscription": document(
        {
            "id": COUNT,
            "protocol": TEXT,
            "partition": COUNT,
            "qos": COUNT,
            "next_offset": COUNT,
            "acknowledged_offset": COUNT,
            "unacknowledged": COUNT,
            "lag": optional(COUNT),
            "lag_seconds": optional(NUMBER),
            "lag_trend": optional(NUMBER),
            "paused": FLAG,
            "created_ms": WHOLE,
            "used_ms": WHOLE,
        },
        {
            "group": optional(TEXT),
            "group_base64": TEXT,
            "topic": optional(TEXT),
            "topic_base64": TEXT,
            "log": document({"first_offset": COUNT, "next_offset": COUNT}),
        },
    ),
    "GroupPosition": document(POSITION_FIELDS),
    "Group": document(
        {
            "protocol": TEXT,
            "unacknowledged": COUNT,
            "lag": optional(COUNT),
            "lag_seconds": optional(NUMBER),
            "lag_trend": optional(NUMBER),
            "created_ms": optional(WHOLE),
            "used_ms": optional(WHOLE),
            "positions": listed(ref("GroupPosition")),
        },
        {
            **NAME,
            "topic": optional(TEXT),
            "topic_base64": TEXT,
            "state": optional(TEXT),
            "members": optional(listed(ref("GroupMember"))),
        },
    ),
    "GroupMember": document(
        {"id": TEXT, "instance": optional(TEXT), "client_id": TEXT, "host": TEXT, "partitions": listed(WHOLE)}
    ),
    "NewGroup": document({}, {**NAME, **named("topic"), "from": POSITION, "partitions": listed(COUNT)}),
    "Positions": document({"positions": listed(document({"next_offset": COUNT}, {"partition": COUNT}))}),
    "Committed": document({"positions": listed(document({"partition": COUNT, "next_offset": COUNT}))}),
    "ResetTo": document({"to": POSITION}, {"dry_run": FLAG, "partition": COUNT}),
    "GroupReset": document(
        {
            "dry_run": FLAG,
            "again": COUNT,
            "passed": COUNT,
            "positions": listed(
                document(
                    {
                        "id": optional(COUNT),
                        "partition": COUNT,
                        "from_offset": COUNT,
                        "next_offset": COUNT,
                        "again": COUNT,
                        "passed": COUNT,
                    }
                )
            ),
        }
    ),
    "DeletedGroup": document({"deleted": TEXT}),
    "Pending": document(
        {
            "first_offset": COUNT,
            "last_offset": COUNT,
            "first_tag": WHOLE,
            "records": COUNT,
            "deliveries": COUNT,
            "state": {"enum": ["in flight", "queued", "given up"]},
            "due_ms": optional(COUNT),
        }
    ),
    "Reset": document({"next_offset": COUNT}),
    "Redrive": document({}, {**named("from"), **named("to"), "limit": COUNT}),
    "Redriven": document({"redriven": COUNT}),
    "Key": document({"name": TEXT, "known_by": listed(TEXT), "created_ms": WHOLE}, IDENTITY),
    "NewKey": document({"name": TEXT}, IDENTITY),
    "KeyMade": document({"name": TEXT}, {"key": TEXT}),
    "Rotate": document({}, {"end_old": FLAG}),
    "KeyTest": document({"right": {"enum": ["publish", "subscribe", "create", "manage"]}}, named("topic")),
    "KeyTested": document({"name": TEXT, "allowed": FLAG}),
    "Batch": document(
        {
            "writer": TEXT,
            "batch": COUNT,
            "complete": FLAG,
            "abandoned": FLAG,
            "parts": COUNT,
            "records": COUNT,
            "time_ms": WHOLE,
        },
        {"repeated": FLAG, "needed_files": COUNT, "missing_files": COUNT, "removed_files": COUNT},
    ),
    "Commit": document({"writer": TEXT, "batch": COUNT, "names": listed(TEXT)}),
    "Staged": document({"name": TEXT, "size_bytes": COUNT}),
    "Names": document({"names": listed(TEXT)}),
    "Dropped": document({"dropped": {"anyOf": [COUNT, TEXT]}}),
    "Closed": document({"closed": COUNT}),
    "DeletedSubscription": document({"deleted": COUNT}),
    "Revoked": document({"revoked": TEXT}),
    "Abandon": document({"batch": COUNT}),
}

"""The description of admin HTTP as OpenAPI 3.1, made of the table of routes, the operations below and the schemas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from netserver.access.table import ANY_PART, ROUTES, Route
from netserver.http.query import FORMATS
from netserver.http.schemas import COUNT, FLAG, SCHEMAS, TEXT, Schema, items, ref
from netserver.http.splitting import SPLITS
from netserver.version import product_version

JSON: Final = "application/json"
JSONL: Final = "application/x-ndjson"
RAW: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """What one route does.

    Attributes:
        body: media type -> schema of what it takes.
        answer: media type -> schema of what it gives.
        query: name -> (schema, meaning) of its parameters.
    """

    summary: str
    answer: dict[str, Schema] = field(default_factory=dict)
    body: dict[str, Schema] = field(default_factory=dict)
    status: int = 200
    query: dict[str, tuple[Schema, str]] = field(default_factory=dict)


def _gives(summary: str, answer: Schema, body: str = "", status: int = 200, /, **query: str) -> Operation:
    parameters = {name: (TEXT, meaning) for name, meaning in query.items()}
    return Operation(summary, {JSON: answer}, {JSON: ref(body)} if body else {}, status, parameters)


POSITION: Final = "earliest, latest, a number, +N, -N, @TIME or @-1h30m"
READ: Final[dict[str, tuple[Schema, str]]] = {
    "from": (TEXT, f"begin here: {POSITION}"),
    "to": (TEXT, "end before this position"),
    "partition": (COUNT, "only this one; all are merged by time"),
    "limit": (COUNT, "at most so many records"),
    "bytes": (COUNT, "at most so many bytes of values"),
    "follow": (FLAG, "wait for more at the end"),
    "timeout_ms": (COUNT, "a follower's answer ends then"),
    "key": (TEXT, "only records with this key"),
    "contains": (TEXT, "only records whose value holds this text"),
    "where": (TEXT, "/json/pointer=value: only JSON values with this there"),
    "format": ({"enum": list(FORMATS)}, "lines, one document, or each value after its length"),
    "progress": (FLAG, "say now and then how far a search is"),
    "credit": (COUNT, "records that a WebSocket takes at once"),
}
PUBLISH: Final[dict[str, tuple[Schema, str]]] = {
    "split": ({"enum": list(SPLITS)}, "how a body that is no JSON document becomes records"),
    "partition": (COUNT, "of all of them; else by key, else by turns"),
    "key": (TEXT, "of all of them"),
}
WHICH: Final = {"protocol": "where several have the name", "topic": "the same"}
LINES: Final[Schema] = {"anyOf": [ref("Record"), ref("Remark"), ref("Progress")]}

OPERATIONS: Final[dict[str, Operation]] = {
    "GET version": _gives("What runs here", ref("Version")),
    "GET status": _gives("The server at a glance", ref("Status")),
    "GET topics": _gives("All topics", items(ref("Topic")), name="glob of names"),
    "POST topics": _gives("Make a topic", ref("Topic"), "NewTopic", 201),
    "GET topics/TOPIC": _gives("One topic", ref("Topic")),
    "PATCH topics/TOPIC": _gives("Change settings; default takes one back", ref("Topic"), "TopicSettings"),
    "DELETE topics/TOPIC": _gives("Delete a topic and its records", ref("Deleted")),
    "POST topics/TOPIC/trim": _gives("Raise the start of a partition's log", ref("Trimmed"), "Trim"),
    "GET topics/TOPIC/segments": _gives("Its segment files, by partition", items(ref("Segment"))),
    "GET topics/TOPIC/records": Operation(
        "Read or follow records", {JSONL: LINES, JSON: items(LINES), RAW: {}}, query=READ
    ),
    "POST topics/TOPIC/records": Operation(
        "Publish records; the answer comes when they are on disk",
        {JSON: {"anyOf": [ref("Stored"), ref("Offsets")]}},
        {JSONL: ref("NewRecord"), JSON: ref("NewRecords"), RAW: {}},
        query=PUBLISH,
    ),
    "POST staged": Operation(
        "Keep rows for a commit",
        {JSON: ref("Staged")},
        {"application/msgpack": {}},
        201,
        {"writer": (TEXT, "whose batch they belong to"), "batch": (COUNT, "its number")},
    ),
    "POST staged/drop": _gives("Remove staged files", ref("Dropped"), "Names"),
    "POST commits": _gives("Append staged rows, each batch exactly once", ref("Batch"), "Commit"),
    "GET commits": _gives("The last batch of every writer", items(ref("Batch"))),
    "GET commits/NAME": _gives("The last batch of a writer", ref("Batch")),
    "POST commits/NAME/abandon": _gives("Give up the rest of a batch", ref("Batch"), "Abandon"),
    "GET segments/NAME/NAME/NAME": Operation(
        "A segment file by the id of its topic, its partition and its name: header, every batch, footer, verified",
        {JSONL: ref("UpkeepEvent")},
    ),
    "GET segments/NAME/NAME/NAME/records": Operation(
        "The records of a segment file, verified", {JSONL: ref("UpkeepEvent")}
    ),
    "POST verify": Operation(
        "Verify every byte of the log, in a process of its own; what is found is told at once",
        {JSONL: ref("UpkeepEvent")},
    ),
    "POST backups": Operation(
        "Copy the log into a new directory below the one of the setting [admin] backup_dir",
        {JSONL: ref("UpkeepEvent")},
        {JSON: ref("NewBackup")},
    ),
    "POST reload": _gives("Read the configuration again, as SIGHUP does", ref("Reloading"), "", 202),
    "GET damage": _gives("What was found damaged since the start", ref("Damage")),
    "GET settings": _gives("Every setting in force, and where it comes from", items(ref("Setting"))),
    "GET connections": _gives("Open connections", items(ref("Connection"))),
    "DELETE connections/NAME": _gives("Abort a connection", ref("Closed")),
    "GET sessions": _gives("Sessions of the JSON streaming protocol", items(ref("Session")), uuid="glob"),
    "GET sessions/NAME": _gives("One session", ref("Session")),
    "DELETE sessions/NAME": _gives("Remove a session; its connection ends", ref("Dropped")),
    "GET subscriptions": _gives("Durable subscriptions", items(ref("Subscription")), topic="glob of topics"),
    "GET subscriptions/NAME": _gives("One subscription", ref("Subscription")),
    "GET subscriptions/NAME/pending": _gives("Delivered, and acknowledged by nobody", items(ref("Pending"))),
    "POST subscriptions/NAME/reset": _gives("Go on somewhere else", ref("Subscription"), "Reset"),
    "POST subscriptions/NAME/pause": _gives("Deliver nothing until it is resumed", ref("Subscription")),
    "POST subscriptions/NAME/resume": _gives("Go on delivering", ref("Subscription")),
    "POST subscriptions/NAME/redrive": _gives("Dead letters back into a topic", ref("Redriven"), "Redrive"),
    "DELETE subscriptions/NAME": _gives("Remove a subscription", ref("DeletedSubscription")),
    "GET groups": _gives(
        "Durable positions by name, of all protocols",
        items(ref("Group")),
        name="glob of names",
        topic="glob of topics",
        protocol="only of this protocol",
    ),
    "POST groups": _gives("Make a group of HTTP consumers", ref("Group"), "NewGroup", 201),
    "GET groups/NAME": _gives("One group", ref("Group"), **WHICH),
    "GET groups/NAME/records": Operation(
        "Read or follow records from the position of a group, which that does not change",
        {JSONL: LINES, JSON: items(LINES), RAW: {}},
        query={key: value for key, value in READ.items() if key != "from"}
        | {key: (TEXT, meaning) for key, meaning in WHICH.items()},
    ),
    "POST groups/NAME/positions": _gives(
        "What is before these positions is done with", ref("Committed"), "Positions", **WHICH
    ),
    "POST groups/NAME/reset": _gives(
        "Go on somewhere else, or say what that would mean", ref("GroupReset"), "ResetTo", **WHICH
    ),
    "POST groups/NAME/pause": _gives("Deliver nothing until it is resumed", ref("Group"), **WHICH),
    "POST groups/NAME/resume": _gives("Go on delivering", ref("Group"), **WHICH),
    "POST groups/NAME/redrive": _gives("Its dead letters back into a topic", ref("Redriven"), "Redrive", **WHICH),
    "DELETE groups/NAME": _gives("Remove a group", ref("DeletedGroup"), **WHICH),
    "POST console/logins": _gives("An address of the console that logs in once", ref("ConsoleLogin"), "", 201),
    "GET keys": _gives("Identities of the access file", items(ref("Key"))),
    "POST keys": _gives("A new identity; tells its key once", ref("KeyMade"), "NewKey", 201),
    "DELETE keys/NAME": _gives("Revoke an identity; its connections end", ref("Revoked")),
    "POST keys/NAME/rotate": _gives("Another key for an identity", ref("KeyMade"), "Rotate"),
    "POST keys/NAME/test": _gives("Whether an identity has a right", ref("KeyTested"), "KeyTest"),
    "GET openapi.json": _gives("This description", {"type": "object"}),
}


def operation_of(route: Route) -> Operation:
    """What a route does. Raises KeyError: it is not described."""
    return OPERATIONS[route.name]


@cache
def fields_of(route: Route) -> frozenset[str] | None:
    """What the document that a route takes may have; None: it takes none."""
    schema = operation_of(route).body.get(JSON)
    return None if schema is None else frozenset(SCHEMAS[schema["$ref"].rpartition("/")[2]]["properties"])


def openapi() -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(f"/v1/{'/'.join(_parts(route))}", {})[route.method.lower()] = _described(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quintlog", "version": product_version()},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _parts(route: Route) -> list[str]:
    """A path's parts; what stands for any is ``{name}``, ``{name2}`` and so on."""
    counts: Counter[str] = Counter(ANY_PART)
    parts = []
    for part in route.path:
        number = counts[part]
        parts.append(f"{{{part.lower()}{number if number > 1 else ''}}}" if part in ANY_PART else part)
        counts[part] += 1
    return parts


def _described(route: Route) -> dict[str, Any]:
    operation = operation_of(route)
    rights = f"Needs the role {route.role}"
    if route.right is not None:
        rights += f", or the right to {route.right}"
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": TEXT}
        for part in _parts(route)
        if part.startswith("{")
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema, "description": meaning}
        for name, (schema, meaning) in operation.query.items()
    ]
    described: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"{rights}.",
        "operationId": "-".join([route.method.lower(), *(part.lower() for part in route.path)]),
        "parameters": parameters,
        "responses": {
            str(operation.status): {"description": operation.summary, "content": _content(operation.answer)},
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": ref("Problem")}},
            },
        },
    }
    if operation.body:
        described["requestBody"] = {"content": _content(operation.body)}
    return described


def _content(kinds: dict[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in kinds.items()}

"""The one table of what every request needs: the right, and how a refusal looks. Nothing is served without an entry.

Sessions take the right of a request from here when they are imported (`right_of`), the admin listener takes its routes.
``docs/access.md`` shows the table, the tests try every entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from netserver.access.rights import Right, Role

PUBLISH, SUBSCRIBE, CREATE, MANAGE = Right.PUBLISH, Right.SUBSCRIBE, Right.CREATE, Right.MANAGE


class Request(NamedTuple):
    """A request of a protocol.

    Attributes:
        right: to the topic that it names; None: whoever was let in may send it.
        refusal: what a client is told that has not the right.
        creates: it makes the topic that it names when there is none: then it needs ``create``, too.
    """

    right: Right | None = None
    refusal: str = ""
    creates: bool = False


FREE: Final = Request()
_BLIPMQ: Final = "NACK 401"
_KAFKA: Final = "error 29"
_FUJIN: Final = "error text"
_RELIABLY: Final = "error line"

REQUESTS: Final[dict[str, dict[str, Request]]] = {
    "figg": {
        "ATTACH": Request(SUBSCRIBE, "no ATTACHED, closed after 5 s", creates=True),
        "DETACH": FREE,
        "PUBLISH": Request(PUBLISH, "no ACK, closed after 30 s", creates=True),
        "PING": FREE,
    },
    "reliably": {
        "StatelessRequest": FREE,
        "StartRequest": Request(SUBSCRIBE, _RELIABLY),
        "ResumeRequest": Request(SUBSCRIBE, _RELIABLY),
        "AckRequest": FREE,
    },
    "tank": {
        "PRODUCE": Request(PUBLISH, "code 0xFF, unknown topic"),
        "PRODUCE_WITH_SEQ": Request(PUBLISH, "code 0xFF, unknown topic"),
        "CONSUME": Request(SUBSCRIBE, "unknown topic"),
        "PING": FREE,
        "DISCOVER_PARTITIONS": Request(SUBSCRIBE, "no partitions, as of an unknown topic"),
        "CREATE_TOPIC": Request(CREATE, "code 5, read only"),
        "RELOAD_CONF": Request(MANAGE, "code 11, unknown topic"),
        "STATUS": FREE,
        "DISCOVER_TOPICS": Request(None, "topics without any right to them are left out"),
        "DISCOVER_TOPOLOGY": FREE,
    },
    "blipmq": {
        "HELLO": FREE,
        "AUTH": FREE,
        "PUBLISH": Request(PUBLISH, _BLIPMQ, creates=True),
        "SUBSCRIBE": Request(SUBSCRIBE, _BLIPMQ, creates=True),
        "ACK": Request(SUBSCRIBE, _BLIPMQ),
        "NACK": FREE,
        "PING": FREE,
        "PONG": FREE,
        "POLL": Request(SUBSCRIBE, _BLIPMQ),
    },
    "fujin": {
        "CONNECT_WRITER": FREE,
        "CONNECT_READER": Request(SUBSCRIBE, _FUJIN, creates=True),
        "WRITE": Request(PUBLISH, _FUJIN, creates=True),
        "BEGIN": FREE,
        "COMMIT": Request(PUBLISH, _FUJIN),
        "ROLLBACK": FREE,
        "FETCH": Request(SUBSCRIBE, _FUJIN),
        "ACK": Request(SUBSCRIBE, _FUJIN),
        "NACK": Request(SUBSCRIBE, _FUJIN),
        "DISCONNECT": FREE,
    },
    "kafka": {
        "API_VERSIONS": FREE,
        "SASL_HANDSHAKE": FREE,
        "SASL_AUTHENTICATE": FREE,
        "METADATA": Request(None, "topics without any right to them are left out; error 29 when they are named"),
        "PRODUCE": Request(PUBLISH, _KAFKA),
        "FETCH": Request(SUBSCRIBE, _KAFKA),
        "LIST_OFFSETS": Request(SUBSCRIBE, _KAFKA),
        "INIT_PRODUCER_ID": Request(None, "error 53 with a transactional id and no right to publish to anything"),
        "ADD_PARTITIONS_TO_TXN": Request(PUBLISH, _KAFKA),
        "ADD_OFFSETS_TO_TXN": Request(None, "as JOIN_GROUP"),
        "END_TXN": FREE,
        "TXN_OFFSET_COMMIT": Request(SUBSCRIBE, _KAFKA),
        "OFFSET_COMMIT": Request(SUBSCRIBE, _KAFKA),
        "OFFSET_FETCH": Request(SUBSCRIBE, _KAFKA),
        "FIND_COORDINATOR": FREE,
        "JOIN_GROUP": Request(
            None, "error 30 where it may not subscribe to what the group has offsets of, or to nothing"
        ),
        "SYNC_GROUP": FREE,
        "HEARTBEAT": FREE,
        "LEAVE_GROUP": Request(None, "as JOIN_GROUP"),
        "LIST_GROUPS": Request(None, "groups with offsets of topics that it may not subscribe to are left out"),
        "DESCRIBE_GROUPS": Request(None, "error 30 where it may not subscribe to what the group has offsets of"),
        "DELETE_GROUPS": Request(None, "error 30 where it may not manage what the group has offsets of"),
        "CREATE_TOPICS": Request(CREATE, _KAFKA),
        "DELETE_TOPICS": Request(MANAGE, _KAFKA),
        "DELETE_RECORDS": Request(MANAGE, _KAFKA),
        "CREATE_PARTITIONS": Request(MANAGE, _KAFKA),
        "DESCRIBE_CONFIGS": Request(None, "error 29 without any right to the topic"),
        "INCREMENTAL_ALTER_CONFIGS": Request(MANAGE, _KAFKA),
    },
}


def right_of(protocol: str, request: str) -> Right:
    """The right that a request needs. Raises KeyError: it is not in the table."""
    right = REQUESTS[protocol][request].right
    assert right is not None, f"{protocol} {request} needs no right"
    return right


# --- admin HTTP


DATA: Final = frozenset({"records", "staged", "commits", "positions", "test", "drop", "logins"})


class Route(NamedTuple):
    """A route of the admin listener under ``/v1/``, or a page of its console under ``/console/``.

    Attributes:
        path: its parts; NAME stands for any, TOPIC for the name of a topic.
        role: who has this role may use it, whatever topics it is about.
        right: who has none may use it with this right to the topic of the path, or of the group that the path names.
        named_in: the field of the body that names the topic instead.
    """

    method: str
    path: tuple[str, ...]
    role: Role
    right: Right | None = None
    named_in: str | None = None

    @property
    def name(self) -> str:
        """Its method and path, such as ``GET topics/TOPIC``."""
        return f"{self.method} {'/'.join(self.path)}"

    @property
    def changes(self) -> bool:
        """It changes something other than that there are more records: the audit has it."""
        return self.method != "GET" and self.path[-1] not in DATA


def _route(method: str, path: str, role: Role, right: Right | None = None, named_in: str | None = None) -> Route:
    return Route(method, tuple(path.split("/")), role, right, named_in)


PUBLIC: Final = ("/healthz", "/readyz", "/directory", "/metrics", "/metrics/topics", "/summary")
"""Paths that need nothing: they tell of no records, and answer GET only."""

ROUTES: Final = (
    _route("GET", "openapi.json", Role.VIEWER),
    _route("GET", "status", Role.VIEWER),
    _route("GET", "topics", Role.VIEWER),
    _route("POST", "topics", Role.OPERATOR, CREATE, "name"),
    _route("GET", "topics/TOPIC", Role.VIEWER, SUBSCRIBE),
    _route("PATCH", "topics/TOPIC", Role.OPERATOR, MANAGE),
    _route("DELETE", "topics/TOPIC", Role.OPERATOR, MANAGE),
    _route("POST", "topics/TOPIC/trim", Role.OPERATOR, MANAGE),
    _route("GET", "topics/TOPIC/segments", Role.VIEWER, SUBSCRIBE),
    _route("GET", "topics/TOPIC/records", Role.READER, SUBSCRIBE),
    _route("POST", "topics/TOPIC/records", Role.OPERATOR, PUBLISH),
    _route("POST", "staged", Role.OPERATOR),
    _route("POST", "staged/drop", Role.OPERATOR),
    _route("POST", "commits", Role.OPERATOR),
    _route("GET", "commits", Role.VIEWER),
    _route("GET", "commits/NAME", Role.VIEWER),
    _route("POST", "commits/NAME/abandon", Role.OPERATOR),
    _route("GET", "segments/NAME/NAME/NAME", Role.VIEWER),
    _route("GET", "segments/NAME/NAME/NAME/records", Role.READER),
    _route("POST", "verify", Role.OPERATOR),
    _route("POST", "backups", Role.OPERATOR),
    _route("POST", "reload", Role.OPERATOR),
    _route("GET", "version", Role.VIEWER),
    _route("GET", "damage", Role.VIEWER),
    _route("GET", "settings", Role.VIEWER),
    _route("GET", "connections", Role.VIEWER),
    _route("DELETE", "connections/NAME", Role.OPERATOR),
    _route("GET", "sessions", Role.VIEWER),
    _route("GET", "sessions/NAME", Role.VIEWER),
    _route("DELETE", "sessions/NAME", Role.OPERATOR),
    _route("GET", "subscriptions", Role.VIEWER),
    _route("GET", "subscriptions/NAME", Role.VIEWER),
    _route("GET", "subscriptions/NAME/pending", Role.VIEWER),
    _route("POST", "subscriptions/NAME/reset", Role.OPERATOR),
    _route("POST", "subscriptions/NAME/pause", Role.OPERATOR),
    _route("POST", "subscriptions/NAME/resume", Role.OPERATOR),
    _route("POST", "subscriptions/NAME/redrive", Role.OPERATOR),
    _route("DELETE", "subscriptions/NAME", Role.OPERATOR),
    _route("GET", "groups", Role.VIEWER),
    _route("POST", "groups", Role.OPERATOR, SUBSCRIBE, "topic"),
    _route("GET", "groups/NAME", Role.VIEWER, SUBSCRIBE),
    _route("GET", "groups/NAME/records", Role.READER, SUBSCRIBE),
    _route("POST", "groups/NAME/positions", Role.OPERATOR, SUBSCRIBE),
    _route("POST", "groups/NAME/reset", Role.OPERATOR, MANAGE),
    _route("POST", "groups/NAME/pause", Role.OPERATOR, MANAGE),
    _route("POST", "groups/NAME/resume", Role.OPERATOR, MANAGE),
    _route("POST", "groups/NAME/redrive", Role.OPERATOR),
    _route("DELETE", "groups/NAME", Role.OPERATOR, MANAGE),
    _route("POST", "console/logins", Role.VIEWER),
    _route("GET", "keys", Role.OPERATOR),
    _route("POST", "keys", Role.OPERATOR),
    _route("DELETE", "keys/NAME", Role.OPERATOR),
    _route("POST", "keys/NAME/rotate", Role.OPERATOR),
    _route("POST", "keys/NAME/test", Role.OPERATOR),
)
PUBLIC_PAGES: Final = ("login", "logout", "static")
"""First parts of pages of the console that need nothing: who has not logged in sees no more."""

PAGES: Final = (
    _route("GET", "", Role.VIEWER),
    _route("GET", "topics", Role.VIEWER),
    _route("POST", "topics", Role.OPERATOR, CREATE, "name"),
    _route("GET", "topics/TOPIC", Role.VIEWER, SUBSCRIBE),
    _route("POST", "topics/TOPIC/settings", Role.OPERATOR, MANAGE),
    _route("POST", "topics/TOPIC/trim", Role.OPERATOR, MANAGE),
    _route("POST", "topics/TOPIC/delete", Role.OPERATOR, MANAGE),
    _route("GET", "topics/TOPIC/records", Role.READER, SUBSCRIBE),
    _route("GET", "topics/TOPIC/records/NAME/NAME", Role.READER, SUBSCRIBE),
    _route("GET", "topics/TOPIC/records/NAME/NAME/value", Role.READER, SUBSCRIBE),
    _route("GET", "topics/TOPIC/live", Role.READER, SUBSCRIBE),
    _route("GET", "topics/TOPIC/download", Role.READER, SUBSCRIBE),
    _route("GET", "groups", Role.VIEWER),
    _route("GET", "groups/NAME", Role.VIEWER, SUBSCRIBE),
    _route("POST", "groups/NAME/reset", Role.OPERATOR, MANAGE),
    _route("POST", "groups/NAME/redrive", Role.OPERATOR),
    _route("POST", "groups/NAME/delete", Role.OPERATOR, MANAGE),
    _route("GET", "sessions", Role.VIEWER),
    _route("POST", "sessions/NAME/end", Role.OPERATOR),
    _route("GET", "connections", Role.VIEWER),
    _route("POST", "connections/NAME/close", Role.OPERATOR),
    _route("GET", "storage", Role.VIEWER),
    _route("GET", "storage/TOPIC", Role.VIEWER),
    _route("GET", "settings", Role.VIEWER),
)
"""Pages of the console. They are HTML for people: a GET shows, a POST is a form of one of them."""
ANY_PART: Final = frozenset(("NAME", "TOPIC"))


def route_of(method: str, parts: Sequence[bytes], routes: Sequence[Route] = ROUTES) -> Route | None:
    """The entry of a request; None: there is no such route."""
    return next((route for route in routes if route.method == method and _is_at(route, parts)), None)


def methods_of(parts: Sequence[bytes], routes: Sequence[Route] = ROUTES) -> list[str]:
    """The methods of the routes at a path; none: there is nothing."""
    return sorted({route.method for route in routes if _is_at(route, parts)})


def _is_at(route: Route, parts: Sequence[bytes]) -> bool:
    return len(route.path) == len(parts) and all(
        want in ANY_PART or want.encode() == part for want, part in zip(route.path, parts, strict=True)
    )


def topic_of(route: Route, parts: Sequence[bytes]) -> bytes | None:
    """The topic that a request names in its path."""
    return parts[route.path.index("TOPIC")] if "TOPIC" in route.path else None

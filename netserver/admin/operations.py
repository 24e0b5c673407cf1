"""What each route of the API does: an entry for each of ``netserver.access.table.ROUTES`` but those that stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from multidict import MultiMapping

from netserver.admin.access import KeysApi, SubscriptionsApi
from netserver.admin.api import Api, int_field
from netserver.admin.bodies import Body
from netserver.admin.callers import Caller
from netserver.admin.groups import GroupsApi
from netserver.admin.inspection import InspectionApi
from netserver.admin.staged_commits import Staging, batch_field, batch_parameters, names_field

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may do what it asks for.

    Attributes:
        parts: its path after ``/v1/``, decoded.
        body: its document; empty where it is none.
        content: its body as it came.
    """

    caller: Caller
    parts: Sequence[bytes]
    query: MultiMapping[str]
    body: Document
    content: Body

    @property
    def name(self) -> bytes:
        """Of what it is about: a topic, a group, a number."""
        return self.parts[1]

    @property
    def writer(self) -> str:
        """The name as that of a writer of batches."""
        return self.name.decode("utf-8", "replace")


Operation: TypeAlias = Callable[[Call], Awaitable[Any]]


def of_topics(api: Api, inspection: InspectionApi) -> dict[str, Operation]:
    """The server itself, topics, connections and sessions."""
    return {
        "GET status": lambda call: api.status(),
        "POST reload": lambda call: api.reload(),
        "GET version": lambda call: inspection.version(),
        "GET damage": lambda call: inspection.damage(),
        "GET settings": lambda call: inspection.settings(),
        "GET topics": lambda call: api.topics(call.query.get("name")),
        "POST topics": lambda call: api.create_topic(call.body),
        "GET topics/TOPIC": lambda call: api.topic(call.name),
        "PATCH topics/TOPIC": lambda call: api.configure_topic(call.name, call.body),
        "DELETE topics/TOPIC": lambda call: api.delete_topic(call.name),
        "POST topics/TOPIC/trim": lambda call: api.trim(call.name, call.body),
        "GET topics/TOPIC/segments": lambda call: inspection.segments(call.name),
        "POST topics/TOPIC/records": lambda call: api.publish(call.name, call.body),
        "GET connections": lambda call: api.connections(),
        "DELETE connections/NAME": lambda call: api.abort_connection(call.name),
        "GET sessions": lambda call: api.sessions(call.query.get("uuid")),
        "GET sessions/NAME": lambda call: api.session(call.name),
        "DELETE sessions/NAME": lambda call: api.drop_session(call.name),
    }


def of_commits(staging: Staging) -> dict[str, Operation]:
    """Batches that are written exactly once."""
    return {
        "POST staged": lambda call: staging.stage(call.content, batch_parameters(call.query)),
        "POST staged/drop": lambda call: staging.drop(names_field(call.body)),
        "POST commits": lambda call: staging.commit(batch_field(call.body), names_field(call.body)),
        "GET commits": lambda call: staging.batches(),
        "GET commits/NAME": lambda call: staging.progress(call.writer),
        "POST commits/NAME/abandon": lambda call: staging.abandon(call.writer, int_field(call.body, "batch")),
    }


def of_positions(subscriptions: SubscriptionsApi, groups: GroupsApi) -> dict[str, Operation]:
    """Durable positions, one by one and by name."""
    return {
        "GET subscriptions": lambda call: subscriptions.list(call.query.get("topic")),
        "GET subscriptions/NAME": lambda call: subscriptions.show(call.name),
        "GET subscriptions/NAME/pending": lambda call: subscriptions.pending(call.name),
        "POST subscriptions/NAME/reset": lambda call: subscriptions.reset(call.name, call.body),
        "POST subscriptions/NAME/pause": lambda call: subscriptions.pause(call.name, is_paused=True),
        "POST subscriptions/NAME/resume": lambda call: subscriptions.pause(call.name, is_paused=False),
        "POST subscriptions/NAME/redrive": lambda call: subscriptions.redrive(call.name, call.body),
        "DELETE subscriptions/NAME": lambda call: subscriptions.delete(call.name),
        "GET groups": lambda call: groups.list_groups(call.query),
        "POST groups": lambda call: groups.create(call.body),
        "GET groups/NAME": lambda call: groups.show(call.name, call.query),
        "POST groups/NAME/positions": lambda call: groups.commit(call.name, call.query, call.body),
        "POST groups/NAME/reset": lambda call: groups.reset(call.name, call.query, call.body),
        "POST groups/NAME/pause": lambda call: groups.pause(call.name, call.query, is_paused=True),
        "POST groups/NAME/resume": lambda call: groups.pause(call.name, call.query, is_paused=False),
        "POST groups/NAME/redrive": lambda call: groups.redrive(call.name, call.query, call.body),
        "DELETE groups/NAME": lambda call: groups.delete(call.name, call.query),
    }


def of_keys(keys: KeysApi) -> dict[str, Operation]:
    """Identities of the access file."""
    return {
        "GET keys": lambda call: keys.list(),
        "POST keys": lambda call: keys.add(call.body),
        "DELETE keys/NAME": lambda call: keys.revoke(call.name),
        "POST keys/NAME/rotate": lambda call: keys.rotate(call.name, call.body),
        "POST keys/NAME/test": lambda call: keys.test(call.name, call.body),
    }

"""The table of rights: every request of every protocol and every HTTP route, tried by everybody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from netserver.access.rights import Right, Role
from netserver.access.table import PUBLIC, REQUESTS, ROUTES, route_of
from netserver.blipmq.codec import FrameType
from netserver.figg import codec as figg
from netserver.fujin.codec import Op
from netserver.kafka.apis import APIS
from netserver.reliably.codec import Request as ReliablyRequest
from netserver.tank.messages import MessageId
from netserver.tank.requests import REQUEST_IDS
from tests import access_place
from tests.access_place import TRIES, https, place, url_of

pytestmark = pytest.mark.whole

TOPIC: Final = b"t-1"
IDENTITIES: Final[dict[str, dict[str, Any]]] = {
    "everything": {right.value: ["*"] for right in Right},
    "nothing": {right.value: [] for right in Right},
    **{f"only-{right}": {other.value: ["t-*"] if other is right else [] for other in Right} for right in Right},
    **{f"not-{right}": {other.value: [] if other is right else ["t-*"] for other in Right} for right in Right},
    "elsewhere": {right.value: ["u-*"] for right in Right},
}


def has(who: str, right: Right, topic: bytes) -> bool:
    globs = IDENTITIES[who][right.value]
    return any(glob == "*" or topic.decode().startswith(glob.removesuffix("*")) for glob in globs)


def test_every_request_of_a_codec_is_in_the_table() -> None:
    numbers = {
        name: value
        for name, value in vars(figg).items()
        if type(value) is int and name not in ("VERSION", "HEADER_BYTES")
    }
    assert set(REQUESTS["figg"]) == {name for name, value in numbers.items() if value in figg.TO_SERVER}
    assert set(REQUESTS["tank"]) == {MessageId(number).name for number in REQUEST_IDS}
    assert set(REQUESTS["blipmq"]) == {kind.name for kind in FrameType}
    assert set(REQUESTS["fujin"]) == {op.name for op in Op}
    assert set(REQUESTS["kafka"]) == {api.key.name for api in APIS.values()}
    assert set(REQUESTS["reliably"]) == {kind.__name__ for kind in get_args(ReliablyRequest)}


def test_every_request_that_needs_a_right_is_tried() -> None:
    needed = {
        (protocol, name) for protocol, requests in REQUESTS.items() for name, entry in requests.items() if entry.right
    }
    assert set(TRIES) == needed
    assert all(REQUESTS[protocol][name].refusal for protocol, name in needed)


@pytest.mark.parametrize("protocol", REQUESTS)
def test_every_request_is_carried_out_for_those_who_may_and_for_nobody_else(tmp_path: Path, protocol: str) -> None:
    async def test() -> None:
        async with place(tmp_path, IDENTITIES) as here:
            assert await access_place.figg_publish(here, "everything", TOPIC)
            for (name, request), attempt in TRIES.items():
                if name != protocol:
                    continue
                right = REQUESTS[name][request].right
                assert right is not None
                for who in IDENTITIES:
                    refused = here.server.access.audit.refused
                    done = await attempt(here, who, TOPIC)
                    assert done == has(who, right, TOPIC), f"{name} {request} by {who}"
                    assert (here.server.access.audit.refused > refused) != done, f"{name} {request} by {who}: the audit"

    asyncio.run(test())


@pytest.mark.parametrize(
    ("protocol", "request_name"),
    [(protocol, name) for protocol, requests in REQUESTS.items() for name, entry in requests.items() if entry.creates],
)
def test_a_first_use_makes_a_topic_for_those_only_who_may_make_it(
    tmp_path: Path, protocol: str, request_name: str
) -> None:
    async def test() -> None:
        async with place(tmp_path, IDENTITIES) as here:
            attempt = TRIES[protocol, request_name]
            for who in ("not-create", "everything"):
                topic = f"t-new-{who}".encode()
                done = await attempt(here, who, topic)
                assert done == (who == "everything"), who
                assert (here.server.log.catalog.get(topic) is not None) == done

    asyncio.run(test())


def test_topics_that_somebody_has_no_right_to_are_hidden_from_him(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, IDENTITIES) as here:
            for topic in (b"t-1", b"u-1", b"other"):
                assert await access_place.figg_publish(here, "everything", topic)
            assert await access_place.tank_topics(here, "everything") == {b"t-1", b"u-1", b"other"}
            assert await access_place.tank_topics(here, "elsewhere") == {b"u-1"}
            assert await access_place.tank_topics(here, "only-manage") == {b"t-1"}
            assert await access_place.tank_topics(here, "nothing") == set()
            for who, seen in (("everything", 3), ("elsewhere", 1), ("only-manage", 1), ("nothing", 0)):
                assert await access_place.kafka_topics(here, who) == await access_place.tank_topics(here, who)
                assert len(await access_place.kafka_topics(here, who)) == seen

    asyncio.run(test())


# --- HTTP

ROLES: Final[dict[str, dict[str, Any]]] = {
    **{f"{role}": {"role": role.value} | {right.value: [] for right in Right} for role in Role},
    **{name: fields for name, fields in IDENTITIES.items() if name.startswith("only-") or name == "nothing"},
}


@pytest.mark.parametrize("certificate", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["key", "certificate"])
def test_every_route_is_open_to_those_who_may_and_to_nobody_else(tmp_path: Path, certificate: bool) -> None:
    async def test() -> None:
        settings = {"admin": https(tmp_path)} if certificate else {}
        async with place(tmp_path, ROLES | {"everything": IDENTITIES["everything"]}, settings) as here:
            assert await access_place.figg_publish(here, "everything", TOPIC)
            for route in sorted(ROUTES, key=lambda route: route.method == "DELETE"):
                for who in ROLES:
                    body = {"name": TOPIC.decode(), "records": [{"value": "x"}], "right": "publish", "topic": "t-1"}
                    url = url_of(route.path, TOPIC)
                    if route.method == "DELETE" and "TOPIC" in route.path and who == "operator":
                        continue  # the others still need it
                    if route.path[0] == "groups":
                        group = {"name": access_place.SOME_NAME, "topic": TOPIC.decode()}
                        assert (await here.http("POST", "/v1/groups", "operator", group))[0] in (201, 409)
                    sent = body if route.method in ("POST", "PATCH") else None
                    status, content = await here.http(route.method, url, who, sent, certificate=certificate)
                    roles = list(Role)
                    may = who in roles and roles.index(Role(who)) >= roles.index(route.role)
                    may = may or (who not in roles and route.right is not None and who == f"only-{route.right}")
                    assert (status != access_place.FORBIDDEN) == may, (route, who, status, content)
                    assert status != 401
                    assert status != 500, content
                    assert b"no POST" not in content
                    assert b"no GET" not in content, f"{route} leads nowhere"
                if here.server.log.catalog.get(TOPIC) is None:
                    assert await access_place.figg_publish(here, "everything", TOPIC)
                status, _ = await here.http(route.method, url_of(route.path, TOPIC), "", {})
                assert status == 401

    asyncio.run(test())


def test_public_paths_need_nothing_and_others_are_not_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"nothing": IDENTITIES["nothing"]}) as here:
            for path in PUBLIC:
                assert (await here.http("GET", path, ""))[0] == 200, path
                assert (await here.http("POST", path, "", {}))[0] == 405, path
            assert (await here.http("GET", "/v1/nothing/of/it", "nothing"))[0] == 404

    asyncio.run(test())


def test_a_route_is_found_by_its_parts() -> None:
    assert route_of("GET", [b"topics", b"TOPIC"]) == route_of("GET", [b"topics", b"x"])
    assert route_of("PUT", [b"topics"]) is None
    assert route_of("GET", [b"topics", b"x", b"y"]) is None

"""The description of the API: valid OpenAPI, and a route for each entry of the table."""

from __future__ import annotations

import json
from typing import Any

from openapi_spec_validator import validate

from netserver.access.table import ROUTES
from netserver.admin.operations import of_commits, of_keys, of_positions, of_topics
from netserver.admin.upkeep import ROUTES as UPKEEP
from netserver.http.openapi import OPERATIONS, openapi
from tests.unit.netserver.admin.test_admin import Caller, with_admin


def test_it_is_valid() -> None:
    validate(openapi())


def test_each_route_is_described_and_nothing_else() -> None:
    assert {route.name for route in ROUTES} == set(OPERATIONS)


def test_each_route_does_something() -> None:
    """The others stream, or are answered by the listener itself."""
    nothing: Any = None
    tables = (
        of_topics(nothing, nothing), of_commits(nothing), of_positions(nothing, nothing), of_keys(nothing)
    )  # fmt: skip
    names = [name for table in tables for name in table]
    others = {"GET openapi.json", "GET topics/TOPIC/records", "GET groups/NAME/records", "POST console/logins"}
    others |= UPKEEP
    assert sorted([*names, *others]) == sorted(route.name for route in ROUTES)


def test_the_server_gives_it() -> None:
    async def test(call: Caller) -> None:
        status, found = await call("GET", "/v1/openapi.json")
        assert (status, found) == (200, json.loads(json.dumps(openapi())))

    with_admin(test)


def test_a_parameter_that_a_route_does_not_have_is_refused() -> None:
    """It would do nothing, and be answered as if it had."""

    async def test(call: Caller) -> None:
        assert (await call("POST", "/v1/topics", {"name": "orders"}))[0] == 201
        status, found = await call("GET", "/v1/topics/orders/records?form=17")
        assert status == 400
        assert found["detail"].startswith("no parameter 'form'; there are from, to, partition, ")
        status, found = await call("DELETE", "/v1/topics/orders?dry_run=true")
        assert (status, found["detail"]) == (400, "no parameter 'dry_run'")
        assert (await call("GET", "/v1/topics/orders"))[0] == 200

    with_admin(test)

"""The description of the API: valid OpenAPI, and a route for each entry of the table."""

from __future__ import annotations

import json

from openapi_spec_validator import validate

from netserver.access.table import ROUTES
from netserver.http.openapi import OPERATIONS, openapi
from tests.unit.netserver.admin.test_admin import Caller, with_admin


def test_it_is_valid() -> None:
    validate(openapi())


def test_each_route_is_described_and_nothing_else() -> None:
    assert {f"{route.method} {'/'.join(route.path)}" for route in ROUTES} == set(OPERATIONS)


def test_the_server_gives_it() -> None:
    async def test(call: Caller) -> None:
        status, found = await call("GET", "/v1/openapi.json")
        assert (status, found) == (200, json.loads(json.dumps(openapi())))

    with_admin(test)

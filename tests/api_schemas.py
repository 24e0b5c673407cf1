"""Answers of admin HTTP against the API's own description: whoever calls it in a test checks that, too."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes

from jsonschema import Draft202012Validator

from netserver.access.table import route_of
from netserver.http.openapi import operation_of
from netserver.http.schemas import SCHEMAS


@cache
def validator(schema: str) -> Any:
    return Draft202012Validator({**json.loads(schema), "components": {"schemas": SCHEMAS}})


def check_answer(method: str, path: str, status: int, content_type: str, content: bytes) -> None:
    """Raises AssertionError or jsonschema's ValidationError: the description does not have it."""
    parts = path.partition("?")[0].removeprefix("/v1/").split("/")
    route = route_of(method, [unquote_to_bytes(part) for part in parts]) if path.startswith("/v1/") else None
    if content_type == "application/problem+json":
        validator('{"$ref": "#/components/schemas/Problem"}').validate(json.loads(content))
    elif route is not None:
        operation = operation_of(route)
        assert status == operation.status
        schema = operation.answer[content_type]
        if content_type == "application/json":
            validator(json.dumps(schema)).validate(json.loads(content))
        elif content_type == "application/x-ndjson":
            for line in content.splitlines():
                if line:
                    validator(json.dumps(schema)).validate(json.loads(line))

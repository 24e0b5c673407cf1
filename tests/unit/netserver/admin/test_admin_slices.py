"""Long bodies and answers of admin HTTP are read and made in slices, and are what they would be in one piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.slices import Slices
from netserver.admin import bodies
from netserver.admin.api import BadRequest
from netserver.admin.bodies import TooManyValues, read_document
from netserver.admin.slices import Encoded, json_bytes, sliced

pytestmark = pytest.mark.whole

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


@given(DOCUMENTS)
def test_the_same_text_in_pieces(document: Any) -> None:
    async def main() -> bytes:
        slices = Slices(asyncio.get_running_loop().call_soon)
        assert await json_bytes(slices, [Encoded(json.dumps(document))]) == json.dumps([document]).encode()
        return await json_bytes(slices, document)

    assert asyncio.run(main()) == json.dumps(document).encode()


@given(DOCUMENTS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
def test_a_large_body_is_what_json_says(document: Any, encoding: str) -> None:
    body = json.dumps({"a": document, "\ud800": [{}]}, ensure_ascii=False).encode(encoding, "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "ADMIN_JSON_AT_ONCE_BYTES", 1)
        assert asyncio.run(read_document(body)) == json.loads(body)


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"a" 1}', b'{"a": [1,]}', b"\xff" * 9, b"[" * 100_000, b"{} {}"])
def test_a_large_body_that_is_no_document(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "ADMIN_JSON_AT_ONCE_BYTES", 1)
    with pytest.raises(BadRequest):
        asyncio.run(read_document(content))


def test_a_large_body_has_a_bounded_number_of_values() -> None:
    def read(value: bytes, count: int) -> dict[str, Any]:
        body = b'{"a": [%b]}' % b",".join([value] * count)
        return asyncio.run(read_document(body + b" " * bodies.ADMIN_JSON_AT_ONCE_BYTES))

    most = bodies.ADMIN_JSON_VALUES_MAX - 1  # the list is one
    assert len(read(b"1", most)["a"]) == most
    for value, count in ((b"1", most + 1), (b"[]", most + 1), (b'{"b":"c"}', most // 2 + 1)):
        with pytest.raises(TooManyValues):
            read(value, count)


def test_whoever_is_given_up_amid_a_list_costs_the_others_nothing() -> None:
    async def main() -> None:
        slices = Slices(asyncio.get_running_loop().call_soon)
        seen = []

        async def look(first: int) -> None:
            async for item in sliced(slices, range(first, first + 20)):
                seen.append(item)
                while not slices.is_over():
                    pass

        tasks = [asyncio.create_task(look(first)) for first in (0, 100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        await tasks[1]
        assert set(range(100, 120)) <= set(seen)
        assert 19 not in seen

    asyncio.run(main())

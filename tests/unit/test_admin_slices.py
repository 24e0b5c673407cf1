"""Long answers of admin HTTP are made in slices, and are what they would be in one piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.slices import Slices
from netserver.admin.slices import json_bytes, sliced

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


@given(DOCUMENTS)
def test_the_same_text_in_pieces(document: Any) -> None:
    async def main() -> bytes:
        return await json_bytes(Slices(asyncio.get_running_loop().call_soon), document)

    assert asyncio.run(main()) == json.dumps(document).encode()


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

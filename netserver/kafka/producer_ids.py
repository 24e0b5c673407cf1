"""InitProducerId: the id by which the repeats of a producer are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .appending import new_producer_id
from .errors import Code
from .schema import Values

if TYPE_CHECKING:
    from .call import Call


async def init_producer_id(call: Call) -> Values:
    """A new id. Transactions are not offered: who asks for one is told so before anything is written."""
    if call.body["transactional_id"] is not None:
        return {"error": Code.UNSUPPORTED_VERSION}
    return {"error": Code.NONE, "producer": new_producer_id(), "epoch": 0}

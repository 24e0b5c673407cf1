"""What requests wait for: changes that become durable, and partitions that are opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.shell.input_pressure import PublishPressure


async def durable(change: Callable[[Callable[[EngineError | None], None]], Any]) -> None:
    """Make a change, and wait until it is on disk. Raises what the change raises, or EngineError: it was refused."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: EngineError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error.again())

    change(done)
    await future


class DiskRoom:
    """Whether more may be published now, as ``netserver.shell.input_pressure`` counts what is not on disk yet."""

    charged = 0

    def __init__(self, pressure: PublishPressure) -> None:
        self._there = asyncio.Event()
        self._there.set()
        pressure.join(self)

    def hold(self, reason: str) -> None:
        """There is too much of it."""
        self._there.clear()

    def release(self, reason: str) -> None:
        """Half of it is stored."""
        self._there.set()

    async def wait(self) -> None:
        """Wait for room."""
        await self._there.wait()


async def opened(partition: Partition) -> None:
    """Wait until a partition is open.

    Raises:
        EngineError: it cannot be.
    """
    if partition.is_open:
        return
    done = asyncio.Event()
    partition.when_open(done.set)
    await done.wait()
    if not partition.is_open:
        raise (partition.error or EngineError(f"{partition.title} cannot be opened")).again()

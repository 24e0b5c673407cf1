"""The session interface of the specification as coroutines, with an application of its own on a real log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import DiskFull
from engine.sessions.store import Sessions
from engine.sessions.types import OutOfOrderAck, UnknownMessage, UnknownSession
from netserver.reliably.async_sessions import AsyncSessions, SessionMessage
from netserver.testing import running
from tests.echo import ALONE
from tests.lmdb_state import data_file_replaced


class Words:
    """The state is what is left of a text, the messages are its words."""

    def pack_state(self, state: list[str]) -> Any:
        return state

    def unpack_state(self, stored: Any) -> list[str]:
        return list(stored)

    def pack_messages(self, messages: Sequence[str]) -> Any:
        return " ".join(messages)

    def unpack_messages(self, stored: Any, count: int) -> Sequence[str]:
        return str(stored).split(" ")


def next_word(state: list[str]) -> tuple[str, list[str]]:
    return state[0], state[1:]


def next_words(state: list[str], limit: int) -> tuple[list[str], list[str]]:
    return state[:limit], state[limit:]


def test_words(tmp_path: Path) -> None:
    async def first() -> None:
        async with running(tmp_path / "data", ALONE) as server:
            sessions = AsyncSessions(Sessions(server.log.state, Words()))
            await sessions.register("u", ["the", "quick", "brown", "fox", "jumps"])
            assert await sessions.after("u", None) is None
            assert await sessions.put("u", next_word) == SessionMessage(1, "the")
            assert await sessions.put_many("u", next_words, 3) == [
                SessionMessage(2, "quick"),
                SessionMessage(3, "brown"),
                SessionMessage(4, "fox"),
            ]
            assert await sessions.after("u", 1) == SessionMessage(2, "quick")
            assert [message.id for message in await sessions.after_many("u", 2)] == [3, 4]
            with pytest.raises(UnknownMessage):
                await sessions.ack("u", 5)
            await sessions.ack("u", 3)
            with pytest.raises(OutOfOrderAck):
                await sessions.after("u", 2)
            with data_file_replaced(tmp_path / "data" / "state", "/dev/full", os.O_WRONLY), pytest.raises(DiskFull):
                await sessions.put("u", next_word)
            await sessions.disconnect("u")
            for call in (sessions.ack("v", 0), sessions.after("v", None), sessions.put("v", next_word)):
                with pytest.raises(UnknownSession, match="Unknown client 'v'"):
                    await call

    async def second() -> None:
        async with running(tmp_path / "data", ALONE) as server:
            sessions = AsyncSessions(Sessions(server.log.state, Words()))
            await sessions.resume("u", 3)
            assert await sessions.after("u", 3) == SessionMessage(4, "fox")
            cancelled = asyncio.ensure_future(sessions.put("u", next_word))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await sessions.put_many("u", next_words, 9) == []
            for _ in range(3000):
                message = await sessions.after("u", 4)
                if message is not None:
                    break
                await asyncio.sleep(0.01)
            assert message == SessionMessage(5, "jumps")

    asyncio.run(first())
    asyncio.run(second())

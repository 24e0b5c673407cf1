"""Sessions against a model, over a store that fails and loses power at will (each seed chooses when).

What a client may count on, whatever happens: an id it has seen always stands for the same message; from any position
that it has not acknowledged further it gets every message again; ids and states stay together.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine.errors import DiskFull, EngineError
from engine.sessions.store import Sessions
from engine.sessions.types import SessionConfig
from tests.simulated_state import SimulatedState

pytestmark = pytest.mark.checked

UUIDS = ("one", "\N{SNOWMAN}")
EXPIRY_S = 30.0
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SEEDS = 200_000 if NIGHTLY else 2_000
SEEDS_PER_TEST = 250
STEPS = 60

Message = list[int]  # [number in the stream, serial number that is never given twice]


class Codec:
    """States are counts of messages made."""

    def pack_state(self, state: int) -> Any:
        return state

    def unpack_state(self, stored: Any) -> int:
        return int(stored)

    def pack_messages(self, messages: Sequence[Message]) -> Any:
        return list(messages)

    def unpack_messages(self, stored: Any, count: int) -> Sequence[Message]:
        assert len(stored) == count
        return [list(message) for message in stored]


class Client:
    """What one client has seen and acknowledged in the session as it was last made."""

    def __init__(self) -> None:
        self.seen: dict[int, Message] = {}
        self.acknowledged = 0
        self.connected = True
        self.gone_at = 0.0

    @property
    def last(self) -> int:
        return max(self.seen, default=0)

    def receive(self, first_id: int, messages: Sequence[Message]) -> None:
        for message_id, message in enumerate(messages, first_id):
            assert message[0] == message_id
            assert self.seen.setdefault(message_id, message) == message
        assert list(self.seen) == list(range(1, len(self.seen) + 1))


class World:
    """Clients, sessions and their store; every method is one thing that may happen.

    A client is in ``clients`` as long as its session has to be there.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.serial = 0
        self.clients: dict[str, Client] = {}
        self.store = SimulatedState()
        self.open()

    def open(self) -> None:
        config = SessionConfig(expiry_s=EXPIRY_S, sweep_slice=2)
        self.sessions = Sessions(self.store, Codec(), config, lambda: self.now)

    def run(self) -> None:
        """Some of the things that may happen, each as often as this seed likes."""
        names = [name for name in THINGS if self.rng.random() < 0.7 or name in ("register", "put")]
        weights = [self.rng.choice((1, 1, 2, 5)) for _ in names]
        history = []
        try:
            for name in self.rng.choices(names, weights, k=STEPS):
                history.append(name)
                getattr(self, name)()
                self.check()
            self.end()
        except Exception:
            print(" ".join(history))
            raise

    def transform(self, state: int, limit: int) -> tuple[list[Message], int]:
        messages = []
        for number in range(state + 1, state + limit + 1):
            self.serial += 1
            messages.append([number, self.serial])
        return messages, state + limit

    def session_lost(self, uuid: str) -> None:
        raise AssertionError("the one owner there is lost a session to somebody else")

    def some_client(self) -> tuple[str, Client] | None:
        return self.rng.choice(list(self.clients.items())) if self.clients else None

    # --- things that may happen

    def register(self) -> None:
        self.register_as(self.rng.choice(UUIDS))

    def register_as(self, uuid: str) -> None:
        self.sessions.register(uuid, 0, self)
        self.clients[uuid] = Client()

    def put(self) -> None:
        if (some := self.some_client()) is None:
            return
        uuid, client = some
        if not client.connected:  # who has not resumed gets what was stored before anything new is made
            return

        def done(error: EngineError | None, first_id: int, messages: Sequence[Message]) -> None:
            if error is None:
                assert self.clients[uuid] is client
                client.receive(first_id, messages)

        self.sessions.put_many(uuid, self.transform, self.rng.randrange(1, 4), done)

    def put_some(self) -> None:
        for _ in range(3):
            self.put()

    def commit(self) -> None:
        self.store.round(self.rng.randrange(1, 4))

    def refuse(self) -> None:
        self.store.round(self.rng.randrange(1, 3), DiskFull("no space"))

    def answer(self) -> None:
        self.store.answer(self.rng.randrange(1, 8))

    def ack(self) -> None:
        if (some := self.some_client()) is not None:
            uuid, client = some
            client.acknowledged = self.rng.randint(client.acknowledged, client.last)
            self.sessions.ack(uuid, client.acknowledged)

    def disconnect(self) -> None:
        if (some := self.some_client()) is not None:
            uuid, client = some
            self.sessions.disconnect(uuid, self)
            if client.connected:
                client.connected = False
                client.gone_at = self.now

    def resume(self) -> None:
        if (some := self.some_client()) is None:
            return
        uuid, client = some
        position = client.acknowledged = self.rng.randint(client.acknowledged, client.last)
        self.sessions.resume(uuid, position, self)
        client.connected = True
        before = client.last
        while messages := self.sessions.after_many(uuid, position):
            client.receive(position + 1, messages)
            position += len(messages)
        assert position >= before

    def sweep(self) -> None:
        self.now += self.rng.choice([0.5, 1.0, 10.0, EXPIRY_S - 0.1, EXPIRY_S + 0.1])
        while self.sessions.sweep():
            if self.sessions._garbage and self.store.answers:
                break  # a refused removal is tried again when the answers come
        for uuid, client in list(self.clients.items()):
            over = not client.connected and self.now - client.gone_at >= EXPIRY_S
            assert (uuid in self.sessions) == (not over), (uuid, self.now - client.gone_at)
            if over:
                del self.clients[uuid]

    def crash(self) -> None:
        self.store = self.store.crash(self.rng.randrange(6))
        self.open()
        for uuid, client in list(self.clients.items()):
            if not client.seen:
                if self.rng.random() < 0.5:  # it begins anew, or never comes back
                    self.register_as(uuid)
                else:
                    del self.clients[uuid]
                continue
            assert uuid in self.sessions, "a session from which something was sent is gone"
            client.connected = False
            client.gone_at = self.now

    def restart(self) -> None:
        self.sessions.flush()
        self.store.run()
        self.crash()

    # --- what must hold

    def check(self) -> None:
        infos = list(self.sessions)
        assert self.sessions.stored_bytes == sum(info.stored_bytes for info in infos)
        assert len(infos) == len(self.sessions)
        if not self.store.queue and not self.store.answers:
            for uuid in self.clients:
                base, durable, last = self.sessions.position(uuid)
                assert base <= durable == last == self.sessions.state(uuid)

    def end(self) -> None:
        """Everything expires, and nothing is left in the store."""
        self.store.run()
        if self.rng.random() < 0.5:
            self.open()
        for info in self.sessions:
            self.sessions.disconnect(info.uuid, self)
        self.now += EXPIRY_S
        while self.sessions.sweep():
            self.store.run()
        self.store.run()
        assert self.store.durable == {}


THINGS = (
    *("register", "put", "put_some", "commit", "refuse", "answer", "ack", "disconnect", "resume", "sweep", "crash"),
    "restart",
)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_PER_TEST))
def test_sessions(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error

"""The system's clock jumps under a real server, over all protocols and all that is kept for a time.

For each jump: it comes while the server runs and is taken back; the server starts with it, and it is taken back; it
comes and stays. A first start in 1970, as of a machine without a battery, is put right while it runs. Nothing may
expire by any of these; a jump that stays is believed after ``clock_doubt_ms``, and the log says each of these.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
from cryptography import x509

from engine.reader import DirectoryReader
from netserver import blipmq
from netserver.client import blocking
from netserver.testing import Settings
from tests.stepped_server import COMPILER, WAIT_S, Life, SteppedClock
from tests.unit.netserver.admin.test_staged_commits import stored
from tests.wrong_clock import DAY, HOUR, SECOND, YEAR

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
JUMPS = {
    "-10 y": -10 * YEAR, "-1 d": -DAY, "-1 h": -HOUR, "+1 h": HOUR, "+1 d": DAY, "+91 d": 91 * DAY, "+10 y": 10 * YEAR,
}  # fmt: skip
CHOSEN = list(JUMPS) if NIGHTLY else ["+91 d"]
HELD_S = 30.0 if NIGHTLY else 0.0
"""How long a jump lasts that is taken back, beside what is done meanwhile; subscriptions are looked at each 10 s."""
BELIEF_S = 30 if NIGHTLY else 2
MESSAGES = 40
SHORT = "30min"
"""What is kept for so long would be gone with each of the jumps."""


@pytest.fixture
def clock(tmp_path: Path) -> SteppedClock:
    clock = SteppedClock(tmp_path)
    if not clock.works():
        pytest.skip("libraries cannot be preloaded here")
    return clock


def settings(doubt: str) -> Settings:
    return {
        "engine": {"clock_doubt_ms": doubt, "housekeeping_interval_ms": "100ms", "retention_grace_ms": "1ms"},
        "blipmq": {"message_ttl": SHORT, "subscription_expiry": SHORT},
        "reliably": {"session_expiry_ms": "1h"},
    }


class Load:
    """Publishes all the time, from a thread of its own."""

    def __init__(self, life: Life) -> None:
        self.acknowledged = 0
        self._life = life
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with blocking.connect("figg", self._life.where("figg")) as client:
            while not self._stop.wait(0.002):
                client.publish_many("load", [b"%d" % n for n in range(100)])
                self.acknowledged += 100


class World:
    """What is kept for a time, and what its owners know of it."""

    def __init__(self, data_dir: Path, clock: SteppedClock) -> None:
        self.data_dir = data_dir
        self.clock = clock
        self.acknowledged = 0
        self.rounds = 0
        self.taken: list[bytes] = []
        self.subscription = 0
        self.staged = ""

    @contextmanager
    def life(self, doubt: str = "1h") -> Iterator[Life]:
        """One process, under load."""
        with Life(self.data_dir, self.clock, settings(doubt)) as life:
            with Load(life) as load:
                yield life
            self.acknowledged += load.acknowledged

    # --- the API of batches

    def stage(self, life: Life, value: bytes) -> str:
        content = msgpack.packb([b"batches", 0, None, value, None, None])
        with urllib.request.urlopen(life.post("/v1/staged", content), timeout=WAIT_S) as answer:
            return str(json.loads(answer.read())["name"])

    def commit(self, life: Life, writer: str, name: str) -> Any:
        return life.process.admin("POST", "/v1/commits", {"writer": writer, "batch": 1, "names": [name]})

    # --- what is there

    def make(self, life: Life) -> None:
        life.process.admin(
            "POST", "/v1/topics", {"name": "kept", "config": {"retention_ms": SHORT, "segment_bytes": "64KiB"}}
        )
        with blocking.connect("figg", life.where("figg")) as client:
            client.publish_many("kept", [b"%d" % n + b"." * 1000 for n in range(300)])
        with blocking.connect("blipmq", life.where("blipmq")) as client, ExitStack() as stack:
            plain = stack.enter_context(client.subscribe("plain"))
            client.publish_many("plain", [b"%d" % n for n in range(MESSAGES)])
            self.subscription = plain.id
        with blocking.connect("blipmq", life.where("blipmq"), version=2) as client:
            client.publish_many("work", [b"%d" % n for n in range(MESSAGES)])
            client.publish("own", b"its own time", ttl_ms=30 * 60 * SECOND)
        self.take(life, 2)
        assert not self.commit(life, "first", self.stage(life, b"of the first writer"))["repeated"]
        self.staged = self.stage(life, b"waits for its commit")

    def take(self, life: Life, count: int) -> None:
        """Has a consumer group deliver some messages that wait; each is acknowledged."""
        with (
            blocking.connect("blipmq", life.where("blipmq"), version=2) as client,
            client.subscribe("work", group="g", start=blipmq.EARLIEST, prefetch_records=1) as group,
        ):
            for _ in range(count):
                message = group.next(WAIT_S)
                self.taken.append(message.value)
                message.ack()
            group.flush()

    def use(self, life: Life) -> None:
        """What would remove something that looks old; and every protocol goes on."""
        self.rounds += 1
        self.take(life, 2)
        assert not self.commit(life, f"writer {self.rounds}", self.stage(life, b"x"))["repeated"]
        with (
            blocking.connect("blipmq", life.where("blipmq"), version=2) as client,
            client.subscribe("own", group=f"group {self.rounds}", start=blipmq.EARLIEST) as group,
        ):
            assert group.next(WAIT_S).value == b"its own time"
        self.every_protocol(life, f"round-{self.rounds}")

    def every_protocol(self, life: Life, topic: str) -> None:
        with blocking.connect("tank", life.where("tank")) as client:
            client.create_topic(topic, exist_ok=True)
            client.publish(topic, b"tank")
        ca = self.data_dir / "fujin-certificate.pem"
        with blocking.connect("fujin", life.where("fujin"), ca=ca) as client:
            client.publish(topic, b"fujin")
            with client.subscribe(topic, mode="pull") as pulled:
                assert pulled.next(WAIT_S).value == b"tank"
        with blocking.connect("figg", life.where("figg")) as client:
            client.publish(topic, b"figg")
            with client.subscribe(topic, start=0) as records:
                assert [records.next(WAIT_S).value for _ in range(3)] == [b"tank", b"fujin", b"figg"]
        parameters = {"topic": topic, "offset": "earliest", "count": 3}
        with blocking.connect("reliably", life.where("reliably"), params=parameters) as session:
            assert len([message for message in session if "value" in message.data]) == 3

    def check(self, life: Life) -> None:
        """All is still there."""
        items = life.process.admin("GET", "/v1/subscriptions")["items"]
        assert self.subscription in {item["id"] for item in items}
        assert "g" in {item["group"] for item in items}
        again = self.commit(life, "first", self.stage(life, b"of the first writer, again"))
        assert again["repeated"], "the batch of the first writer is stored twice"
        assert not self.commit(life, "second", self.staged)["repeated"]
        self.take(life, MESSAGES - len(self.taken))
        assert self.taken == [b"%d" % n for n in range(MESSAGES)]
        with (
            blocking.connect("blipmq", life.where("blipmq")) as client,
            client.subscribe("plain", resume=self.subscription) as plain,
        ):
            assert [plain.next(WAIT_S).value for _ in range(MESSAGES)] == [b"%d" % n for n in range(MESSAGES)]

    def check_files(self) -> None:
        """Behind the end: every acknowledged record, and times in order."""
        numbers = [b"%d" % (n % 100) for n in range(self.acknowledged)]
        load = stored(self.data_dir, b"load")
        assert [record.value for record in load] == numbers
        assert all(a.timestamp_ms <= b.timestamp_ms for a, b in pairwise(load))
        assert len(stored(self.data_dir, b"kept")) == 300
        assert DirectoryReader(self.data_dir).damaged == []
        certificate = x509.load_pem_x509_certificate((self.data_dir / "fujin-certificate.pem").read_bytes())
        assert (certificate.not_valid_before_utc.year, certificate.not_valid_after_utc.year) == (1970, 9999)

    def newest_ms(self) -> int:
        return int(stored(self.data_dir, b"load")[-1].timestamp_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def hold(life: Life) -> None:
    """Lets a jump last."""
    begun = time.monotonic()
    threading.Event().wait(HELD_S)
    assert life.process.is_running
    if HELD_S:
        print(f"held for {time.monotonic() - begun:.0f} s")


@pytest.mark.parametrize("name", CHOSEN)
def test_the_clock_jumps(tmp_path: Path, clock: SteppedClock, name: str) -> None:
    jump = JUMPS[name]
    word, word_believed = ("forward", "ahead of") if jump > 0 else ("back", "behind")
    world = World(tmp_path / "d", clock)
    with world.life() as life:
        world.make(life)
    with world.life() as life:  # in which nothing has been used yet
        clock.set(jump)
        life.wait_for(f"was set {word} by")
        world.use(life)
        hold(life)
        clock.set(0)
        life.wait_for("is right again")
    clock.set(jump)
    with world.life() as life:
        world.use(life)
        hold(life)
        clock.set(0)
        # What was doubted at the start is found to be right, or believed where the start took so long.
        was_doubted = "is right again|believed, .* ahead of the time so far"
        life.wait_for("ahead at the start; it was set back" if 0 < jump <= 400 * DAY else was_doubted)
        world.use(life)
    with world.life(f"{BELIEF_S}s") as life:
        clock.set(jump)
        begun = time.monotonic()
        life.wait_for(f"was set {word} by")
        lasted_s = life.wait_for(f"believed, .* {word_believed} the time so far") - begun
        assert lasted_s >= BELIEF_S, "believed too early"
        world.use(life)
        hold(life)
        world.check(life)
    if jump > 0:  # they never go back
        assert abs(world.newest_ms() - now_ms() - jump) < WAIT_S * SECOND, "times follow what is believed"
    world.check_files()
    print(f"{name}: {world.acknowledged} records acknowledged, believed after {lasted_s:.1f} s")


def test_a_first_start_in_1970(tmp_path: Path, clock: SteppedClock) -> None:
    world = World(tmp_path / "d", clock)
    clock.set(20 * SECOND - now_ms())
    with world.life() as life:
        world.make(life)
        clock.set(0)
        life.wait_for("believed, .* ahead of the time so far")
        world.use(life)
    with world.life() as life:
        world.use(life)
        hold(life)
        world.check(life)
    assert abs(world.newest_ms() - now_ms()) < WAIT_S * SECOND
    world.check_files()

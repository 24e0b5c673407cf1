"""The rule of writing and the bucket on a real server of S3, and with faults between them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from engine.remote.bucket import Bucket
from engine.remote.probe import probe
from engine.remote.store import Refused, Request, StoreError, Unclear, run
from engine.remote.writes import Fenced, HeadWriter, create, read_head, replace_head, take_over
from tests.object_storage_model import World, answered, broken, defect, writer
from tests.remote_objects import head
from tests.s3_faults import CHANCES, S3Faults, s3_faults
from tests.s3_server import BUCKET, CONFIG, s3_server

pytest.importorskip("obstore", reason="S3 IS NOT TESTED: pip install -e '.[remote]'")

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
STORMS = 200 if NIGHTLY else 1
REQUESTS = 400
"""Of each writer of a storm."""
RACERS = 8
RACES = 200 if NIGHTLY else 10

pytestmark = [pytest.mark.whole, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server."""
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(server: int) -> Iterator[S3Faults]:
    """A proxy that does what it is told to."""
    with s3_faults(server, Random(1)) as made:
        yield made


def bucket(port: int, prefix: str) -> Bucket:
    return Bucket.open(f"s3://{BUCKET}/{prefix}", {**CONFIG, "endpoint": f"http://127.0.0.1:{port}"}, 10.0)


def no_wait(attempts: int) -> None:
    """For pauses."""


def test_a_race_has_one_winner(server: int, request: pytest.FixtureRequest) -> None:
    """Without that nothing of this can work; some servers show two winners under load."""
    place = bucket(server, request.node.name)
    tag = place.put_if_absent("head", b"0")
    begin = threading.Barrier(RACERS)

    def race(number: int, name: str, old: str | None) -> str | None:
        begin.wait()
        try:
            if old is None:
                return place.put_if_absent(name, b"%d" % number)
            return place.put_if_match(name, b"%d of %s" % (number, old.encode()), old)
        except Refused:
            return None

    with ThreadPoolExecutor(RACERS) as pool:
        for turn in range(RACES):
            made = [found for found in pool.map(race, range(RACERS), [f"x/{turn}"] * RACERS, [None] * RACERS) if found]
            moved = [found for found in pool.map(race, range(RACERS), ["head"] * RACERS, [tag] * RACERS) if found]
            assert (len(made), len(moved)) == (1, 1)
            tag = moved[0]


def test_the_server_is_fit(server: int, request: pytest.FixtureRequest) -> None:
    place = bucket(server, request.node.name)
    for number in range(RACES):
        probe(place, f"{number:032x}")
    assert place.list_below("probe/") == []


def test_the_server_is_as_the_rule_needs_it(server: int, request: pytest.FixtureRequest) -> None:
    place = bucket(server, request.node.name)
    tag = place.put_if_absent("head", b"one")
    assert place.get("head", 10) == (b"one", tag)
    assert place.get_range("head", 1, 3) == b"ne"
    found = place.describe("head")
    assert (found.name, found.size_bytes, found.tag) == ("head", 3, tag)
    for number in range(3):
        place.put_if_absent(f"pieces/{number}", b"")
        assert len(place.list_below("pieces/")) == number + 1
    place.delete("pieces/1")
    place.delete("pieces/1")
    assert [item.name for item in place.list_below("pieces/")] == ["pieces/0", "pieces/2"]


@pytest.mark.parametrize(
    "script", [["lost"], ["conflict"], ["busy"], ["twice"], ["late"], ["late", "lost", "conflict"]]
)
def test_a_fault_leaves_nothing_unclear(proxy: S3Faults, script: list[str], request: pytest.FixtureRequest) -> None:
    """Of an object made once, of the first head and of a later one; what was sent twice changes nothing later."""
    place = bucket(proxy.port, request.node.name)
    direct = HeadWriter()
    proxy.script = list(script)
    run(create("pieces/x", b"content" * 1000, 9), place, no_wait)
    proxy.script = list(script)
    run(direct.commit(head(), 9), place, no_wait)
    proxy.script = list(script)
    run(take_over(direct, "two", "", "b" * 32, 9), place, no_wait)
    proxy.calm()
    found = run(read_head(1), place, no_wait)
    assert found is not None
    assert found[0] == direct.head
    assert found[0].epoch == head().epoch + 1
    assert place.get("pieces/x", 10_000).content == b"content" * 1000


def test_a_library_that_repeats_takes_its_own_write_for_another_s(proxy: S3Faults, request: Any) -> None:
    """Why conditional writes are sent once: the answer to the second attempt is about the first."""
    place = bucket(proxy.port, request.node.name)
    patient = Bucket(place._again, place._again)
    proxy.script = ["lost"]
    with pytest.raises(Refused):
        patient.put_if_absent("head", b"ours")
    proxy.script = ["lost"]
    with pytest.raises(Unclear):
        place.put_if_absent("pieces/x", b"ours")
    assert place.get("head", 10).content == place.get("pieces/x", 10).content == b"ours"


def test_a_late_head_is_refused_by_the_server(proxy: S3Faults, request: pytest.FixtureRequest) -> None:
    place = bucket(proxy.port, request.node.name)
    tag = place.put_if_absent("head", b"1")
    proxy.script = ["late"]
    with pytest.raises(Unclear):
        place.put_if_match("head", b"late", tag)
    try:
        run(replace_head(b"2", tag, 9), place, no_wait)
    except Fenced:  # the late one was first
        assert place.get("head", 10).content == b"late"
    else:
        proxy.calm()
        assert place.get("head", 10).content == b"2"


def storm(server: int, prefix: str, seed: int, requests: int) -> tuple[str | None, World, S3Faults]:
    """Three primaries at once, all through a proxy; then another reader, past it, looks what is there."""
    world = World(Random(seed))
    with s3_faults(server, Random(seed), dict(CHANCES)) as proxy:
        place = bucket(proxy.port, prefix)

        def ask(request: Request) -> Any:
            return getattr(place, request.call)(*request.arguments)

        def write(owner: str) -> None:
            steps = writer(world, owner)
            wanted = next(steps)
            for _ in range(requests):
                wanted = answered(ask, steps, wanted)
            steps.close()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(write, "XYZ"))
        proxy.calm()
    return broken(world, bucket(server, prefix)), world, proxy


@pytest.mark.parametrize("seed", range(STORMS))
def test_a_storm_loses_nothing(server: int, seed: int) -> None:
    problem, world, proxy = storm(server, f"storm-{seed}", seed, REQUESTS)
    assert problem is None
    assert len(world.acknowledged) > 10
    never = {"lost", "twice", "late", "conflict", "busy"} - set(proxy.happened)
    assert len(never) <= 1, "each happens some ten times: one storm in hundreds has none of one kind"
    print(f"storm {seed}: {len(world.acknowledged)} records acknowledged, {dict(proxy.happened)}")


def test_a_storm_finds_a_head_that_is_overwritten(server: int) -> None:
    """With that defect three primaries forget each other's records: whoever looks has to see it."""
    with defect("overwrite the head"):
        assert any(storm(server, f"defect-{seed}", seed, 150)[0] is not None for seed in range(5))


def test_errors_of_a_server_that_is_gone_are_unclear(server: int) -> None:
    with s3_faults(server, Random(1)) as gone:
        port = gone.port
    with pytest.raises(StoreError) as raised:
        bucket(port, "x").put_if_absent("head", b"")
    assert type(raised.value) is Unclear

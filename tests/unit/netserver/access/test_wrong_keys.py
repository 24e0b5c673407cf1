"""Wrong keys: what they cost, who waits for them, and what the audit says; secrets are nowhere."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from netserver.access.audit import Audit
from netserver.access.guard import Guard
from netserver.access.identities import Identities
from netserver.access.key_file import add_identity, add_key, digest_of, read_key_file, rotate_key
from netserver.access.rights import Right
from netserver.blipmq import codec as blipmq
from netserver.blipmq.codec import FrameType
from netserver.errors import ConfigError
from netserver.limits import (
    AUDIT_LINES_PER_S,
    WRONG_KEY_DELAY_MAX_S,
    WRONG_KEYS_ANSWERED_PER_S,
    WRONG_KEYS_FREE,
    WRONG_KEYS_TURN_MAX_S,
    WRONG_KEYS_TURN_S,
)
from netserver.tank.messages import CreateCode
from tests import access_place, blipmq_peer, tank_peer
from tests.access_place import key_of, place

pytestmark = pytest.mark.whole

EVERYTHING: Final[dict[str, Any]] = {right.value: ["*"] for right in Right}


class Clock:
    """One that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_each_wrong_key_waits_longer_and_time_is_forgiving() -> None:
    clock = Clock()
    guard = Guard(clock)
    waits = [guard.failed("10.0.0.1", f"guess {number}") for number in range(16)]
    assert waits[: WRONG_KEYS_FREE - 1] == [0.0] * (WRONG_KEYS_FREE - 1)
    assert waits == sorted(waits)
    assert waits[-1] == WRONG_KEY_DELAY_MAX_S
    assert guard.failed("10.0.0.2", "another guess") == 0.0, "another address"
    clock.now_s += 60
    assert guard.failed("10.0.0.1", "a typing error") == 0.0


def test_the_same_wrong_key_from_everywhere_waits_too() -> None:
    guard = Guard(Clock())
    waits = [guard.failed(f"10.0.0.{number}", "a revoked key") for number in range(16)]
    assert waits[-1] == WRONG_KEY_DELAY_MAX_S


def test_all_who_wait_are_answered_by_turns() -> None:
    """However many addresses and connections there are; whoever comes for the first time waits for none of them."""
    clock = Clock()
    guard = Guard(clock)
    hosts = [f"10.0.{number // 250}.{number % 250}" for number in range(1000)]
    waits = [guard.failed(host, f"{number} {host}") for number in range(WRONG_KEYS_FREE + 4) for host in hosts]
    put_off = Counter(wait for wait in waits if wait)
    assert put_off.total() == 5 * len(hosts)
    for second in range(int(max(put_off))):
        in_it = [wait for wait in put_off if second < wait <= second + 1]
        assert sum(map(put_off.__getitem__, in_it)) <= WRONG_KEYS_ANSWERED_PER_S * (1 + WRONG_KEYS_TURN_S)
        assert len(in_it) <= 1 / WRONG_KEYS_TURN_S + WRONG_KEYS_FREE, "few turns, beside the delays of few tries"
    assert guard.failed("10.1.0.1", "a typing error") == 0.0
    for host in hosts * 10:
        assert guard.failed(host, host) <= WRONG_KEYS_TURN_MAX_S + WRONG_KEYS_TURN_S
    clock.now_s += WRONG_KEYS_TURN_MAX_S
    assert guard.failed(hosts[0], "once more") <= WRONG_KEY_DELAY_MAX_S, "nobody waits any more"


def test_a_right_key_never_waits_and_a_wrong_one_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"holder": EVERYTHING}) as here:
            peer = blipmq_peer.AsyncPeer(*await here.streams("blipmq", "nobody"))
            peer.send(blipmq.hello(1))
            await peer.frame()
            for number in range(WRONG_KEYS_FREE + 2):
                began = time.monotonic()
                peer.send(blipmq.auth(2, f"wrong {number}"))
                assert await peer.nack() == (2, 401, "invalid API key")
            assert time.monotonic() - began > 0.1
            began = time.monotonic()
            peer.send(blipmq.auth(2, key_of("holder")))
            assert (await peer.frame()).type == FrameType.ACK
            assert here.server.counters["blipmq"].auth_failures == WRONG_KEYS_FREE + 2
            status, _ = await here.http("GET", "/v1/status", "nobody")
            assert status == 401

    asyncio.run(test())


def test_a_thousand_wrong_keys_a_second_cost_little(tmp_path: Path) -> None:
    """CPU of the server's half of a wrong key: hashing and counting. 1,000 of them have to stay under 50 ms."""
    path = tmp_path / "keys"
    for number in range(50):
        add_key(path, f"key-{number}")
    identities, guard = Identities((), path), Guard()
    began = time.process_time()
    for number in range(1000):
        assert identities.check(f"wrong {number}", "blipmq") is None
        guard.failed("10.0.0.1", f"wrong {number}")
    assert time.process_time() - began < 0.05


def test_new_keys_share_a_salt_and_old_files_go_on_working(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = [add_key(path, f"key-{number}") for number in range(5)]
    assert len({stored.salt for stored in read_key_file(path)}) == 1
    salt = bytes(range(16))
    old = {"name": "old", "salt": salt.hex(), "hash": digest_of(b"the old key, which is long", salt).hex()}
    path.write_text(path.read_text() + json.dumps(old | {"publish": ["a"], "subscribe": [], "created": 1}) + "\n")
    identities = Identities((), path)
    names = [identities.check(key) for key in (*keys, "the old key, which is long")]
    assert [one.name for one in names if one is not None] == [*(f"key-{number}" for number in range(5)), "old"]
    holder = identities.check("the old key, which is long")
    assert holder is not None
    assert holder.may(Right.CREATE, b"a"), "it made topics by first use before there was a right to"
    assert not holder.may(Right.CREATE, b"b")
    assert not holder.may(Right.MANAGE, b"a")


def test_a_rotated_key_counts_until_the_next_rotation(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = add_key(path, "a")
    second = rotate_key(path, "a")
    identities = Identities((), path)
    for key in (first, second):
        found = identities.check(key)
        assert found is not None
        assert identities.current(found) == found
    third = rotate_key(path, "a")
    identities = Identities((), path)
    assert [identities.check(key) is not None for key in (first, second, third)] == [False, True, True]
    fourth = rotate_key(path, "a", keeps_old=False)
    identities = Identities((), path)
    assert [identities.check(key) is not None for key in (third, fourth)] == [False, True]
    with pytest.raises(KeyError):
        rotate_key(path, "b")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"networks": ["10.0.0.1/8"]}, "has host bits set"),
        ({"networks": ["nonsense"]}, "does not appear"),
        ({"anyone": True, "role": "king"}, "king"),
        ({"anyone": True, "listeners": ["http"]}, "no listener 'http'"),
        ({"anyone": True, "quotas": {"speed": 1}}, "no quota 'speed'"),
        ({"anyone": True, "quotas": {"connections": -1}}, "quotas are numbers"),
        ({"anyone": True, "publish": "*"}, "list of patterns"),
        ({"anyone": True, "pubish": ["*"]}, "unknown field 'pubish'"),
    ],
)
def test_what_makes_no_identity_is_refused(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        add_identity(tmp_path / "access", {"name": "x"} | fields)
    assert not (tmp_path / "access").exists()


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access"
    add_key(path, "a")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="everybody may write it"):
        read_key_file(path)


# --- audit


def test_the_audit_has_each_change_and_refusal_and_no_secret(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    identities = {"holder": {"publish": ["a"], "subscribe": []}, "admin": {"role": "operator"}}

    async def test() -> str:
        settings = {"access": {"audit": str(audit)}}
        async with place(tmp_path, identities, settings) as here:
            assert await access_place.figg_publish(here, "holder", b"a")
            assert not await access_place.figg_publish(here, "holder", b"secret plans")
            assert not await access_place.blipmq_publish(here, "holder", b"b")
            status, content = await here.http("POST", "/v1/keys", "admin", {"name": "new"})
            assert status == 201, content
            key = str(json.loads(content)["key"])
            assert (await here.http("DELETE", "/v1/topics/a", "holder"))[0] == 403
            assert (await here.http("DELETE", "/v1/topics/a", "admin"))[0] == 200
            assert (await here.http("DELETE", "/v1/topics/a", "admin"))[0] == 404
            assert (await here.http("GET", "/v1/status", "stranger"))[0] == 401
            return key

    key = asyncio.run(test())
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    content = audit.read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(line["who"], line["listener"], line["what"], line.get("on"), line["result"]) for line in lines] == [
        ("holder", "figg", "PUBLISH", "secret plans", "refused"),
        ("holder", "blipmq", "PUBLISH", "b", "refused"),
        ("admin", "admin", "POST /v1/keys", "new", "done"),
        ("holder", "admin", "DELETE /v1/topics/TOPIC", "a", "refused"),
        ("admin", "admin", "DELETE /v1/topics/TOPIC", "a", "done"),
        ("admin", "admin", "DELETE /v1/topics/TOPIC", "a", "UnknownTopic"),
        ("nobody", "admin", "GET /v1/status", None, "refused"),
    ]
    assert all(re.fullmatch(r"127\.0\.\d\.\d:\d+", line["from"]) for line in lines)
    assert not any(secret in content for secret in (key, key_of("holder"), key_of("stranger")))


def test_a_topic_that_is_made_through_tank_is_in_the_audit(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def test() -> None:
        async with place(tmp_path, {"maker": EVERYTHING}, {"access": {"audit": str(audit)}}) as here:
            peer = tank_peer.Peer(*await here.streams("tank", "maker"))
            assert await peer.receive()
            assert [await peer.create(b"made") for _ in range(2)] == [CreateCode.CREATED, CreateCode.EXISTS]

    asyncio.run(test())
    (line,) = [json.loads(line) for line in audit.read_text().splitlines()]
    assert (line["who"], line["listener"], line["what"], line["on"]) == ("maker", "tank", "CREATE_TOPIC", "made")


def test_refusals_of_one_kind_are_bounded_and_counted(tmp_path: Path) -> None:
    clock = Clock()
    audit = Audit(tmp_path / "audit", clock)
    for _ in range(1000):
        audit.refuse("a", "10.0.0.1:5", "figg", "PUBLISH", b"t")
    audit.refuse("b", "10.0.0.1:5", "figg", "PUBLISH", b"t")
    clock.now_s += 1
    audit.refuse("a", "10.0.0.1:5", "figg", "PUBLISH", b"\xff" * 70_000)
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [line["who"] for line in lines] == ["a"] * AUDIT_LINES_PER_S + ["b", "a"]
    assert lines[-1]["left_out"] == 1000 - AUDIT_LINES_PER_S
    assert len(lines[-1]["on"]) == 256
    assert audit.refused == 1002


def test_an_audit_file_that_cannot_be_written_leaves_the_lines_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(tmp_path / "none" / "audit")
    with caplog.at_level("INFO", "quintlog.audit"):
        audit.change("a", "?", "admin", "POST /v1/keys", "b")
    assert "cannot be written" in caplog.text
    assert '"what": "POST /v1/keys"' in caplog.text
    assert '"time"' not in caplog.text, "the log has the time itself"
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    Audit(tmp_path / "link").refuse("a", "?", "figg", "PUBLISH")
    assert not (tmp_path / "elsewhere").exists(), "somebody's link is not followed"

"""Patterns of topics: what they match, the index that finds them, and how many a connection may have."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from netserver.blipmq import codec, codec_v2, session_v2
from netserver.blipmq.codec import FrameType, PayloadError
from netserver.blipmq.limits import CONNECTION_SHAPES_MAX, PATTERN_TOKENS_MAX
from netserver.blipmq.patterns import Pattern, PatternIndex, is_pattern
from netserver.blipmq.session_v2 import PatternSubscription
from tests.blipmq_place import Place, blipmq_state, with_server_2
from tests.echo import until


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"a.*", (b"a.b", b"a."), (b"a", b"a.b.c", b"b.b")),
        (b"*", (b"a", b""), (b"a.b",)),
        (b"*.x.*", (b"1.x.2",), (b"1.y.2", b"x.2")),
        (b"a.>", (b"a.b", b"a.b.c"), (b"a", b"b.c")),
        (b">", (b"a", b"a.b"), ()),
        (b"a.*.>", (b"a.b.c", b"a.b.c.d"), (b"a.b", b"a")),
    ],
)
def test_patterns(pattern: bytes, yes: tuple[bytes, ...], no: tuple[bytes, ...]) -> None:
    index: PatternIndex[str] = PatternIndex()
    one = Pattern(pattern)
    index.add(one, "it")
    assert is_pattern(pattern)
    for topic in (*yes, *no):
        assert one.matches(topic) is (topic in yes)
        assert index.find(topic) == ["it"] * (topic in yes)
    index.remove(one, "it")
    index.remove(one, "it")
    assert not any(map(index.find, yes))
    assert not is_pattern(b"a*.b>")
    assert not is_pattern(b">.b")


def test_a_pattern_has_so_many_tokens_and_topics_may_have_more() -> None:
    longest = b"*." * (PATTERN_TOKENS_MAX - 1) + b">"
    index: PatternIndex[int] = PatternIndex()
    index.add(Pattern(longest), 1)
    index.add(Pattern(longest[:-1] + b"x"), 2)
    for tokens in (PATTERN_TOKENS_MAX, PATTERN_TOKENS_MAX + 1, 60_000):
        assert index.find(b".".join([b"x"] * tokens)) == ([1, 2] if tokens == PATTERN_TOKENS_MAX else [1])
    with pytest.raises(PayloadError):
        Pattern(b"*." + longest)


def test_the_index_finds_what_comparing_token_by_token_finds() -> None:
    def stands_for(pattern: bytes, topic: bytes) -> bool:
        wanted, tokens = pattern.split(b"."), topic.split(b".")
        if wanted[-1] == b">":
            wanted.pop()
            if len(tokens) <= len(wanted):
                return False
            tokens = tokens[: len(wanted)]
        return len(wanted) == len(tokens) and all(w in (b"*", t) for w, t in zip(wanted, tokens, strict=True))

    names = [b".".join(tokens) for size in (1, 2, 3) for tokens in product((b"a", b"b", b""), repeat=size)]
    patterns = [b".".join(tokens) for size in (1, 2, 3) for tokens in product((b"a", b"*", b">"), repeat=size)]
    patterns = [pattern for pattern in patterns if is_pattern(pattern)]
    index: PatternIndex[bytes] = PatternIndex()
    for pattern in patterns:
        index.add(Pattern(pattern), pattern)
    for name in names:
        expected = [pattern for pattern in patterns if stands_for(pattern, name)]
        assert sorted(index.find(name)) == sorted(expected)
        assert [pattern for pattern in patterns if Pattern(pattern).matches(name)] == expected


def test_wildcards_in_very_many_arrangements_are_refused() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        arrangements = [b".".join(tokens) for tokens in product((b"a", b"*"), repeat=6)][1 : CONNECTION_SHAPES_MAX + 2]
        peer.send(b"".join(codec_v2.subscribe(cid, text, 0) for cid, text in enumerate(arrangements, 1)))
        kinds = [(await peer.frame()).type for _ in arrangements]
        assert kinds == [FrameType.ACK] * CONNECTION_SHAPES_MAX + [FrameType.NACK]
        peer.send(codec_v2.subscribe(99, b"b.*.x.x.x.x.x", 0) + codec_v2.subscribe(100, arrangements[0], 0))
        assert (await peer.frame()).type == FrameType.NACK
        assert (await peer.frame()).type == FrameType.ACK, "one more of a known arrangement"
        place.peers.pop().writer.transport.abort()
        await until(lambda: not blipmq_state(place).patterns.find(b"a.a.a.a.a.a"))

    with_server_2(test)


def test_a_pattern_is_answered_after_many_turns_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    monkeypatch.setattr(session_v2, "TOPICS_A_STEP", 1)

    async def test(place: Place) -> None:
        publisher, peer = await place.peer(), await place.peer()
        names = [b"t.%d" % number for number in range(600)]
        publisher.send(b"".join(codec.subscribe(cid, name, 1) for cid, name in enumerate(names)))
        await publisher.frames(len(names))
        catalog, patterns = place.server.log.catalog, blipmq_state(place).patterns
        add = patterns.add

        def added(pattern: Pattern, entry: PatternSubscription) -> None:
            add(pattern, entry)
            asyncio.get_running_loop().call_soon(catalog.create, b"t.late")  # while topics are still being looked for

        monkeypatch.setattr(patterns, "add", added)
        catalog.create(b"u.late")
        peer.send(codec_v2.subscribe(1, b"t.*", 0))
        assert (await peer.frame()).type == FrameType.ACK
        await publisher.publish(b"t.late", b"new")
        await publisher.publish(b"u.late", b"not wanted")
        await publisher.publish(b"t.599", b"old")
        assert sorted([one[2:] for one in await peer.delivered(2)]) == [(b"t.599", b"old"), (b"t.late", b"new")]

    with_server_2(test)

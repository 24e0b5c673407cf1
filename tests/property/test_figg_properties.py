"""Figg's codec for any messages, and the clients' window for any order of calls."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netserver.client.window import Entry, Window
from netserver.figg import codec, frames, frames_pure
from netserver.figg.codec import Decoder, Message

pytestmark = pytest.mark.checked

U64 = st.integers(0, 2**64 - 1)
TOPIC = st.binary(max_size=40)
TO_SERVER: st.SearchStrategy[Message] = st.one_of(
    st.builds(codec.Attach, TOPIC, st.none() | U64),
    st.builds(codec.Detach, TOPIC),
    st.builds(codec.Publish, TOPIC, U64, st.binary(max_size=300)),
    st.builds(codec.Ping, U64),
)
TO_CLIENT: st.SearchStrategy[Message] = st.one_of(
    st.builds(codec.Attached, TOPIC, U64),
    st.builds(codec.Detached, TOPIC),
    st.builds(codec.Data, TOPIC, U64, st.binary(max_size=300)),
    st.builds(codec.Ack, U64),
    st.builds(codec.Pong, U64),
)


@given(st.lists(TO_SERVER, max_size=8), st.lists(TO_CLIENT, max_size=8), st.lists(st.integers(0, 4000), max_size=6))
def test_any_messages_in_any_portions(requests: list[Message], answers: list[Message], cuts: list[int]) -> None:
    for decoder, messages in ((Decoder("server"), requests), (Decoder("client"), answers)):
        stream = b"".join(map(codec.encode, messages))
        edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
        found = [decoder.feed(stream[start:end]) for start, end in itertools.pairwise(edges)]
        assert [message for part in found for message in part] == messages


@given(TOPIC, U64, st.lists(st.binary(max_size=100), max_size=12), st.data())
def test_packed_values_come_back(topic: bytes, number: int, values: list[bytes], data: st.DataObject) -> None:
    number = min(number, 2**64 - 1 - len(values))
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))
    packed = frames.pack_values(topic, number, values, start, end)
    assert packed == frames_pure.pack_values(topic, number, values, start, end)
    expected = [codec.Publish(topic, number + row, value) for row, value in enumerate(values[start:end])]
    assert Decoder("server").feed(packed) == expected


class Model:
    """A window in the plainest way: lists of numbers."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int]] = []
        self.unsent: list[tuple[int, int]] = []


@given(
    st.lists(st.tuples(st.sampled_from(["add", "send", "ack", "settle", "rewind"]), st.integers(0, 30)), max_size=60)
)
def test_a_window_does_what_lists_would(calls: list[tuple[str, int]]) -> None:
    async def main() -> None:
        window, model = Window(40, 10_000), Model()
        entries: dict[int, Entry] = {}
        number = 0
        for name, argument in calls:
            if name == "add":
                count = argument % 5 + 1
                pending = sum(last - first + 1 for first, last in model.pending)
                assert window.try_room(count, 3) == (pending == 0 or pending + count <= 40)
                if pending and pending + count > 40:
                    continue
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                last = number + count - 1
                entries[number] = Entry(number, last, b"%03d" % number, future, range(number, last + 1), count)
                window.add(entries[number])
                model.pending.append((number, last))
                model.unsent.append((number, last))
                number = last + 1
            elif name == "send":
                sent = [int(frame) for frame in window.take_unsent(max(argument, 1))]
                assert sent == [first for first, _ in model.unsent[: len(sent)]]
                assert len(sent) == min(len(model.unsent), (max(argument, 1) + 2) // 3)
                del model.unsent[: len(sent)]
            elif name == "ack":
                gone = []
                for pair in model.pending:
                    if pair in model.unsent or pair[1] > argument:
                        break
                    gone.append(pair)
                assert window.ack_through(argument) == sum(last - first + 1 for first, last in gone)
                model.pending = [pair for pair in model.pending if pair not in gone]
            elif name == "settle" and model.pending:
                pair = model.pending[argument % len(model.pending)]
                window.settle(entries[pair[0]])
                model.pending.remove(pair)
                if pair in model.unsent:
                    model.unsent.remove(pair)
            elif name == "rewind":
                window.rewind()
                model.unsent = list(model.pending)
            assert window.records == sum(last - first + 1 for first, last in model.pending)
            assert window.outstanding() == [n for first, last in model.pending for n in range(first, last + 1)]
            done = {first for first, entry in entries.items() if entry.future.done()}
            assert done == set(entries) - {first for first, _ in model.pending}

    asyncio.run(main())

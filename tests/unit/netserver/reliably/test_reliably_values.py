"""Numbers and their lines: the captured values, the compiled module against its twin, bulk against single steps."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from netserver.reliably import mersenne, mersenne_pure, values
from netserver.reliably.values import Numbers, NumbersState, next_number, next_numbers, update_crc

VECTORS = Path(__file__).parents[3] / "data" / "reliably.jsonl"
MODULES = [mersenne, mersenne_pure]


def rows(case: str) -> list[dict[str, Any]]:
    found = [row for row in map(json.loads, VECTORS.read_text().splitlines()) if row["case"] == case]
    assert found
    return found


@pytest.mark.parametrize("module", MODULES)
def test_first_values(module: ModuleType) -> None:
    for row in rows("mt_first"):
        assert module.next_value(row["seed"]) == row["next"]
        assert update_crc(row["next"].to_bytes(4, "big"), 0) == row["crc_of_next"]


@pytest.mark.parametrize("row", rows("stream"), ids=lambda row: str(row["seed"]))
def test_streams(row: dict[str, Any]) -> None:
    numbers, state = next_numbers(NumbersState(row["count"], row["seed"], 0), row["count"] + 5)
    assert [item["value"] for item in numbers] == row["values"]
    assert numbers[-1]["crc"] == row["crc"] == state.crc
    assert all("crc" not in item for item in numbers[:-1])
    assert state.count == 0
    assert next_numbers(state, 100) == (Numbers(b""), state)


@pytest.mark.parametrize("row", rows("stream_marks"), ids=lambda row: str(row["count"]))
def test_long_streams(row: dict[str, Any]) -> None:
    marks = {mark["id"]: mark for mark in row["marks"]}
    state = NumbersState(row["count"], row["seed"], 0)
    made = 0
    for mark_id in sorted(marks):
        numbers, state = next_numbers(state, mark_id - made)
        made += len(numbers)
        assert made == mark_id
        assert (numbers[-1]["value"], state.crc) == (marks[mark_id]["value"], marks[mark_id]["crc"])
    assert state.count == 0
    assert numbers[-1]["crc"] == state.crc


def test_example_of_the_specification() -> None:
    (row,) = rows("spec_example_crc")
    assert update_crc(b"".join(value.to_bytes(4, "big") for value in row["values"]), 0) == row["crc"]


def test_checksum_is_the_usual_crc_32() -> None:
    assert update_crc(b"123456789", 0) == 0xCBF43926 == zlib.crc32(b"123456789")


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 0x9908B0DF])
def test_bulk_is_single_steps(seed: int) -> None:
    count = 40
    state = NumbersState(count, seed, 0)
    single = []
    while state.count:
        data, state = next_number(state)
        single.append(data)
    rng = random.Random(seed)
    bulk: list[dict[str, int]] = []
    state = NumbersState(count, seed, 0)
    while state.count:
        numbers, state = next_numbers(state, rng.randrange(1, 10))
        bulk += numbers
    assert bulk == single


@pytest.mark.parametrize("module", MODULES)
def test_values_and_lines_of_the_twins_agree(module: ModuleType) -> None:
    rng = random.Random(5)
    for _ in range(20):
        seed, count = rng.getrandbits(32), rng.randrange(20)
        out = bytearray(4 * count + 3)
        last = module.fill_values(seed, out, count)
        expected = []
        value = seed
        for _ in range(count):
            value = mersenne_pure.next_value(value)
            expected.append(value)
        assert last == value
        assert bytes(out[: 4 * count]) == b"".join(value.to_bytes(4, "big") for value in expected)
    for first_id in (1, 9, 10, 4294967295 - 3):
        numbers = [0, 9, 10, 4294967295][: 4294967296 - first_id]
        packed = b"".join(value.to_bytes(4, "big") for value in numbers)
        out = bytearray(module.LINE_ROOM * len(numbers))
        size = module.put_lines(out, packed, first_id)
        lines = bytes(out[:size]).splitlines()
        assert [json.loads(line) for line in lines] == [
            {"id": first_id + n, "data": {"value": value}} for n, value in enumerate(numbers)
        ]


@pytest.mark.parametrize("module", MODULES)
def test_no_room_is_an_error(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="no room"):
        module.fill_values(1, bytearray(7), 2)
    with pytest.raises(ValueError, match="no room"):
        module.fill_values(1, bytearray(8), -1)
    with pytest.raises(ValueError, match="no room"):
        module.put_lines(bytearray(2 * module.LINE_ROOM - 1), bytes(8), 1)
    out = bytearray(10)
    assert module.put_decimal(out, 0, 4294967295) == 10
    assert out == b"4294967295"


def test_lines() -> None:
    numbers, _ = next_numbers(NumbersState(3, 2147483648, 0), 3)
    assert bytes(numbers.lines(1)) == (
        b'{"id":1,"data":{"value":652847386}}\n'
        b'{"id":2,"data":{"value":4017758818}}\n'
        b'{"id":3,"data":{"value":2424392586,"crc":1143707898}}\n'
    )
    assert bytes(numbers[1:].lines(2)) == bytes(numbers.lines(1)).split(b"\n", 1)[1]
    assert bytes(numbers[:2].lines(1)).count(b"crc") == 0
    assert numbers[1:3][1] == {"value": 2424392586, "crc": 1143707898}
    assert numbers[:2] != numbers
    assert numbers != [1]
    assert numbers[3:].crc is None
    with pytest.raises(ValueError, match="one piece"):
        numbers[::2]
    with pytest.raises(IndexError):
        numbers[3]


def test_start_is_any_word() -> None:
    starts = {values.random_seed() for _ in range(50)}
    assert len(starts) > 45
    assert all(0 <= start < 2**32 for start in starts)

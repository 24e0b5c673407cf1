"""Runs of sequence numbers against a set."""

from __future__ import annotations

import random

from netserver.fujin.runs import Runs


def numbers(runs: Runs) -> list[int]:
    return [number for first, last in runs for number in range(first, last + 1)]


def test_runs_join_and_split() -> None:
    runs = Runs()
    assert (list(runs), runs.count) == ([], 0)
    runs.add(5, 7)
    runs.add(8, 9)
    assert list(runs) == [(5, 9)]
    runs.add(1, 2)
    runs.add(20, 20)
    runs.add(3, 4)
    assert list(runs) == [(1, 9), (20, 20)]
    assert runs.remove(4, 6) == 3
    assert list(runs) == [(1, 3), (7, 9), (20, 20)]
    assert runs.remove(3, 7) == 2
    assert runs.remove(100, 200) == 0
    assert runs.remove(0, 0) == 0
    assert (list(runs), runs.count) == ([(1, 2), (8, 9), (20, 20)], 5)
    runs.clear()
    assert (list(runs), runs.count) == ([], 0)
    assert runs.remove(1, 5) == 0


def test_runs_are_a_set() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        runs, model = Runs(), set[int]()
        for _ in range(60):
            first = dice.randint(1, 60)
            last = first + dice.randint(0, 8)
            if dice.random() < 0.5:
                new = [number for number in range(first, last + 1) if number not in model]
                if len(new) == last - first + 1:
                    runs.add(first, last)
                    model.update(new)
            else:
                gone = model & set(range(first, last + 1))
                assert runs.remove(first, last) == len(gone)
                model -= gone
            assert numbers(runs) == sorted(model)
            assert runs.count == len(model)
            assert all(after > before + 1 for (_, before), (after, _) in zip(runs, list(runs)[1:], strict=False))

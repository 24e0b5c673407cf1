"""Any schedule of primaries over a hostile object store keeps what was acknowledged; each defect breaks some."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import wraps
from multiprocessing import get_context
from random import Random
from typing import Any

import pytest

from engine.remote import writes
from engine.remote.store import Request
from tests.faulty_store import QUIET, FaultyStore
from tests.object_storage_model import CONTROLS, REAL, STEPS, defect, run

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
SCHEDULES = int(os.environ.get("QUINTLOG_SCHEDULES", 1_000_000 if NIGHTLY else 80))
SEEDS_TRIED = 4000
"""Of a defect, until one breaks: at worst every 70th does."""
PART = 10_000

pytestmark = pytest.mark.timeout(12 * 3600 if NIGHTLY else 120)


def broken_in(first: int, count: int) -> tuple[list[str], int]:
    """What broke in some schedules, and how many records they acknowledged."""
    found, acknowledged = [], 0
    for seed in range(first, first + count):
        problem, records = run(seed)
        acknowledged += records
        if problem is not None:
            found.append(f"schedule {seed}: {problem}")
    return found, acknowledged


def test_no_schedule_loses_what_was_acknowledged() -> None:
    parts = [(first, min(PART, SCHEDULES - first)) for first in range(0, SCHEDULES, PART)]
    if len(parts) == 1:
        results = [broken_in(*parts[0])]
    else:
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            results = list(pool.map(broken_in, *zip(*parts, strict=True)))
    acknowledged = sum(records for _, records in results)
    print(f"{SCHEDULES} schedules, {acknowledged} records acknowledged")
    assert [problem for found, _ in results for problem in found] == []
    assert acknowledged > SCHEDULES


@pytest.mark.parametrize("control", CONTROLS)
def test_a_defect_is_found(control: str) -> None:
    with defect(control):
        assert any(run(seed, control)[0] is not None for seed in range(SEEDS_TRIED))


def test_without_faults_all_goes_well() -> None:
    assert [problem for problem, _ in (run(seed, faults=QUIET) for seed in range(5)) if problem is not None] == []


def test_the_model_goes_through_the_code() -> None:
    """Its steps are functions of `engine.remote.writes`, every one that is there, and schedules reach them all."""
    public = {
        name for name, item in vars(writes).items() if inspect.isfunction(item) and item.__module__ == writes.__name__
    }
    assert set(STEPS) == public
    assert {name for steps in CONTROLS.values() for name in steps} < public
    reached: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        @wraps(REAL[name])
        def call(*arguments: Any) -> Any:
            reached[name] += 1
            return REAL[name](*arguments)

        return call

    try:
        for name in STEPS:
            setattr(writes, name, counted(name))
        for seed in range(8):
            run(seed)
    finally:
        for name in STEPS:
            setattr(writes, name, REAL[name])
    assert set(reached) == public


def test_every_fault_happens() -> None:
    """Otherwise the schedules would show little."""
    store = FaultyStore(Random(1))
    for number in range(2000):
        call = ("put_if_absent", "delete", "list_below", "put_if_match")[number % 4]
        arguments = {"put_if_absent": (b"",), "put_if_match": (b"", "")}.get(call, ())
        with suppress(writes.StoreError):
            store.ask(Request(call, ("x/" if call == "list_below" else f"x/{number // 8}", *arguments)))
    assert {"conflict", "busy", "gone", "lost", "twice", "copy", "stale", "expired", "done"} <= set(store.calls)

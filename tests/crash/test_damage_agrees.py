"""`verify`, `repair` and the server agree about any damage, and `repair --apply` leaves nothing to be mended."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.repair import Repair, Step
from tests.damage import flip
from tests.engine_log import SMALL, EngineLog
from tests.unit.conftest import Logtool
from tests.unit.engine.test_repair import snapshot

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
FIRST, END = map(int, os.environ.get("QUINTLOG_DAMAGES", "0-1000" if NIGHTLY else "0-25").split("-"))
FOUND = (1563, 1697, 1831, 3786)
"""Seeds that something came out with once: numbers of a cut tail after a repair, a damaged segment of a topic without a
description, a pipe as newest segment of a topic whose state is lost, a footer that is damaged with the batches."""
SEEDS = sorted({*range(FIRST, END), *FOUND})
INTERRUPTED = "never acknowledged"
"""The rest of a write that nobody was told of: it is mentioned by all, and wrong for none."""

Numbers = dict[tuple[bytes, int], set[int]]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics; of "t" two partitions, of which the first has sealed segments."""
    path = tmp_path_factory.mktemp("damage") / "image"
    with EngineLog(path, topic=SMALL) as engine:
        for number in range(5):
            for topic in ("t", "other"):
                engine.append([b"%d" % number + b"." * 2000] * 18, topic=topic)
        engine.append([b"late"] * 3, topic="late")
    return path


# --- damages


def any_file(dice: random.Random, data: Path) -> Path:
    """Mostly a segment."""
    found = sorted(path for path in data.rglob("*") if path.is_file() and path.name not in ("LOCK", "lock.mdb"))
    chosen = [path for path in found if path.suffix == ".log"] if dice.random() < 0.7 else found
    return dice.choice(chosen or found)


def turn_a_bit(dice: random.Random, path: Path) -> None:
    size = path.stat().st_size
    if size:
        near = dice.choice((range(min(72, size)), range(max(0, size - 200), size), range(size)))
        flip(path, dice.choice(near) * 8 + dice.randrange(8))


def cut(dice: random.Random, path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, dice.choice((0, size // 2, max(0, size - dice.randrange(1, 100)), dice.randrange(size + 1))))


def lengthen(dice: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        size = dice.choice((1, 39, 40, 500, 5000))
        file.write(dice.choice((bytes(size), dice.randbytes(size), path.read_bytes()[-size:])))


def overwrite(dice: random.Random, path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(dice.randrange(size + 1))
        file.write(dice.choice((bytes(4096), dice.randbytes(4096)))[: size - file.tell()])


def remove(dice: random.Random, path: Path) -> None:
    path.unlink()


def exchange(dice: random.Random, path: Path) -> None:
    """Another file of its kind is in its place."""
    others = sorted(path.parents[2].rglob(f"*{path.suffix}")) if path.suffix else []
    others = [other for other in others if other.is_file() and other != path]
    if others:
        shutil.copy(dice.choice(others), path)


def put_beside(dice: random.Random, path: Path) -> None:
    """Something that is not ours."""
    name = dice.choice(("00000000000000000033.log", "99999999999999999999.log", "notes.txt", "7", "x"))
    other = path.with_name(name)
    if other.exists():
        return
    how = dice.randrange(4)
    if how == 0:
        other.mkdir()
    elif how == 1:
        os.mkfifo(other)
    elif how == 2:
        shutil.copy(path, other)
    else:
        other.write_bytes(dice.randbytes(300))


def lose_a_part(dice: random.Random, path: Path) -> None:
    data = next(parent for parent in path.parents if (parent / "topics").is_dir())
    part = data / dice.choice(("state", "index", "watermarks", "VERSION", "topics/1", "topics/2/0"))
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)


DAMAGES: tuple[Callable[[random.Random, Path], None], ...] = (
    turn_a_bit,
    turn_a_bit,
    cut,
    lengthen,
    lengthen,
    overwrite,
    remove,
    exchange,
    put_beside,
    lose_a_part,
)


# --- what each of them says


@dataclass
class Told:
    """What somebody finds wrong, and which numbers are lost by it."""

    texts: list[str] = field(default_factory=list)
    lost: Numbers = field(default_factory=dict)

    def lose(self, topic: bytes, index: int, first: int, last: int) -> None:
        if last >= first:
            self.lost.setdefault((topic, index), set()).update(range(first, last + 1))


def by_verify(logtool: Logtool, data: Path) -> Told:
    told = Told()
    code, out, err = logtool("--data-dir", str(data), "verify", "-o", "json")
    document: dict[str, Any] = json.loads(out) if out else {"findings": [{"reason": err}]}
    for finding in document["findings"]:
        told.texts.append(json.dumps(finding))
        if "first" in finding:
            told.lose(finding["topic"].encode(), finding["partition"], finding["first"], finding["last"])
        assert len(finding["reason"]) < 1000, "what is in a damaged file is not for the terminal"
    assert bool(told.texts) == (code != 0), (code, out, err)
    return told


def by_repair(steps: list[Step]) -> Told:
    told = Told()
    for step in steps:
        if step.is_wrong:
            told.texts.append(str(step))
            if step.partition is not None:
                told.lose(step.topic, step.partition, step.first_seq, step.last_seq)
    return told


def by_a_start(data: Path, caplog: pytest.LogCaptureFixture) -> tuple[Told, dict[tuple[bytes, int], list[int]]]:
    """What the engine says when everything is opened and read, and the numbers that it reads."""
    told, read = Told(), {}
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        try:
            with EngineLog(data, topic=SMALL) as engine:
                for topic in list(engine.log.catalog):
                    for index in topic.numbers:
                        try:
                            records = engine.read(topic.name.decode(), index)
                        except (EngineError, OSError) as problem:
                            told.texts.append(f"{topic.name!r} {index}: {problem}")
                            continue
                        read[topic.name, index] = [record.seq for record in records]
                        for first, last in engine.lost:
                            told.texts.append(f"{topic.name!r} {index}: lost {first} to {last}")
                            told.lose(topic.name, index, first, last)
        except (EngineError, OSError) as problem:
            told.texts.append(str(problem))
    told.texts += [text for record in caplog.records if INTERRUPTED not in (text := record.getMessage())]
    return told, read


def report(done: list[str], *told: Told) -> str:
    """What was done, and who says what."""
    lines = [f"done: {done}"]
    for name, one in zip(("verify", "repair", "start"), told, strict=False):
        lost = {where: f"{min(numbers)}-{max(numbers)} ({len(numbers)})" for where, numbers in one.lost.items()}
        lines += [f"{name}: lost {lost}", *(f"    {text}" for text in one.texts)]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_say_the_same(
    tmp_path: Path, image: Path, logtool: Logtool, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    dice = random.Random(seed)
    data = Path(shutil.copytree(image, tmp_path / "data"))
    done = []
    for _ in range(dice.choice((1, 1, 2))):
        damage, path = dice.choice(DAMAGES), any_file(dice, data)
        done.append(f"{damage.__name__} {path.relative_to(data)}")
        damage(dice, path)
    started = tmp_path / "started"
    subprocess.run(["cp", "-a", data, started], check=True)  # pipes, too

    before = snapshot(data)
    steps = Repair(data).run()
    verified, repaired = by_verify(logtool, data), by_repair(steps)
    assert snapshot(data) == before, done
    start, read = by_a_start(started, caplog)
    assert bool(verified.texts) == bool(repaired.texts), report(done, verified, repaired)
    kinds = {step.kind for step in steps if step.is_wrong}
    assert verified.lost == repaired.lost or "version" in kinds, report(done, verified, repaired)
    # The server knows its topics from the state, and finds out about the index when it asks there.
    if kinds - {"topic", "index"}:
        assert start.texts, report(done, verified, repaired, start)
    elif not steps:
        assert not start.texts, report(done, verified, repaired, start)

    Repair(data, apply=True).run()
    left = Repair(data).run()
    assert not [step for step in left if step.changes], (done, left)
    again = by_verify(logtool, data)
    for where, numbers in again.lost.items():
        assert numbers <= repaired.lost[where], report(done, again, repaired)
    assert bool(again.texts) == bool(by_repair(left).texts), report(done, again, by_repair(left))
    mended, read_then = by_a_start(data, caplog)
    for where, numbers in read.items():
        assert read_then[where] == numbers, (done, where)
    if not by_repair(left).texts:
        assert not mended.texts, report(done, again, repaired, mended)

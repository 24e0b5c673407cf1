"""Several faults in one life, and then its end: failing calls, a disk that fills up, refusals of `state`, memory
pressure, clocks that jump, and in the end a power cut, a kill, or a stop in good order.

Elsewhere one thing fails at a time. What was mended for one fault must hold while the next one strikes: an undo that
fails, a full disk during a recovery, a marker refused after a failed sync. Worlds and what has to hold are those of
`tests.crash.world`; QUINTLOG_FAULTY_LIVES sets how many lives (100; 60,000 with QUINTLOG_NIGHTLY=1).
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path

import pytest

from engine.errors import DiskFull, EngineError
from engine.segments.batches import PENDING
from engine.state.clock import wall_ms
from tests.crash.world import AutoState, Known, Life
from tests.simulated_files import UNLIMITED, Late, SimulatedFiles, disk_with

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
LIVES = int(os.environ.get("QUINTLOG_FAULTY_LIVES", "60000" if NIGHTLY else "100"))
BLOCKS = 10
STEPS = 25
CODES = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EFBIG, errno.EACCES)
YEAR_MS = 365 * 86_400_000


class Faults:
    """What goes wrong in one life; the hook of its disk."""

    def __init__(self, dice: random.Random, files: SimulatedFiles) -> None:
        self.count = 0
        self.on = True
        self._dice = dice
        self._files = files
        self._rate = dice.choice((0.0, 0.01, 0.03, 0.1))
        self._burst = 0
        self._code = errno.EIO

    def __call__(self, call: str, path: Path) -> None:
        dice = self._dice
        if not self.on:
            return
        if not self._burst:
            if dice.random() >= self._rate:
                return
            self._burst = dice.choice((1, 1, 1, 2, 5, 20))
            self._code = dice.choice(CODES)
        self._burst -= 1
        self.count += 1
        kind = Late if call == "write" and dice.random() < 0.3 else OSError
        raise kind(self._code, os.strerror(self._code), str(path))

    def between_steps(self, life: Life) -> None:
        """Things that do not happen at a call."""
        match self._dice.randrange(12):
            case 0:
                life.files.capacity_bytes = life.files._used() + self._dice.choice((0, 300, 5000, 40_000))
            case 1 | 2:
                life.files.capacity_bytes = UNLIMITED
            case 3:
                life.files.evict()
            case 4:
                if isinstance(life.state, AutoState):
                    life.state.round(self._dice.randint(1, 2), DiskFull("no space for changes in the simulated state"))
            case 5:
                Clock.offset_ms += self._dice.choice((-YEAR_MS, -60_000, 60_000, 10 * YEAR_MS))

    def end(self) -> None:
        """Nothing fails any more."""
        self.on = False
        self._files.capacity_bytes = UNLIMITED


class Clock:
    """The system's clock, set by whoever likes to."""

    offset_ms = 0
    real = staticmethod(wall_ms)

    @classmethod
    def wall_ms(cls) -> int:
        return cls.real() + cls.offset_ms


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock.offset_ms = 0
    monkeypatch.setattr("engine.state.clock.wall_ms", Clock.wall_ms)


def faulty_life(
    path: Path, dice: random.Random, files: SimulatedFiles, state: dict[bytes, bytes], known: Known
) -> tuple[Life, int]:
    """One life with faults, up to the moment before its end, and how many there were."""
    life = Life(path, dice, files, state, known)
    faults = Faults(random.Random(dice.random()), files)
    files.hook = faults
    for number in range(dice.randint(1, STEPS)):
        try:
            life.step(number + dice.randrange(1 << 40))
        except EngineError:
            life.collect()
        faults.between_steps(life)
    if dice.random() < 0.5:
        life.settle()
    faults.end()
    return life, faults.count


def world(path: Path, seed: int) -> tuple[int, int]:
    """(lives, faults) of one world."""
    dice = random.Random(seed)
    files, state, known = disk_with(path), {}, Known()
    lives = faults = 0
    for _ in range(dice.randint(2, 4)):
        files.dice = random.Random(dice.random())
        life, count = faulty_life(path, dice, files, state, known)
        lives, faults = lives + 1, faults + count
        end = dice.choice(("power", "power", "kill", "close", "settle"))
        if end in ("close", "settle"):
            life.settle()
            check_if_it_can(life)
            life.close()
            files = life.files.after_kill() if end == "settle" else life.files
            known, state = life.known.copy(), dict(life.state.durable)
        else:
            image = life.files
            with image.lock:
                files = image.after_power_cut(random.Random(dice.random())) if end == "power" else image.after_kill()
                life.collect()
                known, state = life.known.copy(), dict(life.state.durable)
            life.close()
        files.hook = None
        after = Life(path, dice, files, dict(state), known)
        try:
            after.check()
            for name in (b"a", b"b"):
                partition = after.partition(name)
                after.put(partition, b"after")
            after.settle()
            assert not after.waiting
            after.check()
        finally:
            after.close()
        files, state, known = after.files, dict(after.state.durable), after.known
    return lives, faults


def check_if_it_can(life: Life) -> None:
    """What was acknowledged can be read in the life that acknowledged it, unless its partition is offline."""
    try:
        life.check()
    except EngineError:
        return
    assert all(record.write_batch is None or record.write_batch.state != PENDING for record in life.waiting), (
        "somebody waits"
    )


@pytest.mark.slow
@pytest.mark.timeout(60 + LIVES)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_known_survives_several_faults_and_an_end(block: int) -> None:
    seed, lives, faults = block, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        while lives < LIVES // BLOCKS:
            try:
                more = world(Path(directory), seed)
            except BaseException:
                print(f"seed {seed}")
                raise
            lives, faults = lives + more[0], faults + more[1]
            seed += BLOCKS
    print(f"{lives} lives with {faults} faults")

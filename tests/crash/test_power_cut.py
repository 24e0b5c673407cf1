"""Power cuts on a simulated disk (after ALICE, OSDI'14): any subset of what was not synced may be gone.

One world lives several times. A life is random operations of all kinds; it ends at a random call to the disk by a power
cut or by a kill (the page cache survives, unsynced), or in good order. The next life finds what is left, and what
publishers and readers know must hold (`tests.crash.world`). Several ends of each life are tried; the world goes on
behind one of them. Everything is chosen by the seed, but for the order in which threads happen to run.

QUINTLOG_CRASHES sets how many (400; 200,000 with QUINTLOG_NIGHTLY=1).
"""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.world import Known, Life
from tests.simulated_files import SimulatedFiles, disk_with

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
CRASHES = int(os.environ.get("QUINTLOG_CRASHES", "200000" if NIGHTLY else "400"))
BLOCKS, QUICK_BLOCKS = 10, 4
STEPS = 40
ENDS = 6
"""Tried of each life."""
RARE_CALLS = ("create", "make_dir", "rename", "remove", "sync_dir", "sync_dir", "truncate")


@dataclass
class Image:
    """Disk and state at the moment of the power cut, and what was known before it."""

    files: SimulatedFiles
    state: dict[bytes, bytes]
    known: Known


def end_by_chance(image: Image, power: bool, dice: random.Random, images: list[Image]) -> None:
    """Keeps images of the moments before some calls; the life itself goes on, to no avail.

    Half of the ends come at a call of one kind, as most calls are writes and syncs of segments.
    """
    own = random.Random(dice.random())  # the hook is called by other threads

    def next_end() -> tuple[str | None, int]:
        kind = own.choice((None, None, *RARE_CALLS))
        return kind, int((250 if kind is None else 15) ** own.random())

    kind, left = next_end()

    def hook(call: str, path: Path) -> None:
        nonlocal kind, left
        left -= kind is None or call == kind
        if left == 0:
            files = image.files.after_power_cut(own) if power else image.files.after_kill()
            images.append(Image(files, dict(image.state), image.known.copy()))
            kind, left = next_end() if len(images) < ENDS else (None, -1)

    image.files.hook = hook


def survived(path: Path, dice: random.Random, image: Image) -> None:
    """The log is opened, read and written to behind an end."""
    life = Life(path, dice, image.files, image.state, image.known)
    try:
        found = life.check()
        partition = life.partition(b"a")
        life.put(partition, b"after")
        life.settle()
        again = life.check()
        assert {key: again.get(key) for key in found} == found
    finally:
        life.close()


def lives(path: Path, seed: int) -> int:
    """The lives of one world; how many crashes were looked behind."""
    dice = random.Random(seed)
    image = Image(disk_with(path), {}, Known())
    number = crashes = 0
    for _ in range(dice.randint(2, 4)):
        end = dice.choice(("power", "power", "kill", "close"))
        images: list[Image] = []
        image.files.dice = random.Random(dice.random())
        if end != "close":  # the end may come while the log is opened, or closed, too
            end_by_chance(image, end == "power", dice, images)
        life = Life(path, dice, image.files, image.state, image.known)
        try:
            life.check()
            for _ in range(dice.randint(1, STEPS)):
                number += 1
                life.step(number)
                if len(images) == ENDS:
                    break
        finally:
            life.close()
        image.files.hook = None
        crashes += len(images)
        if images:
            image = images.pop(dice.randrange(len(images)))
        for other in images:
            survived(path, dice, other)
    survived(path, dice, image)
    return crashes


@pytest.mark.timeout(60 + CRASHES)
@pytest.mark.parametrize(
    "block", [block if block < QUICK_BLOCKS else pytest.param(block, marks=pytest.mark.slow) for block in range(BLOCKS)]
)
def test_what_publishers_and_readers_know_survives_every_crash(block: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        seed, crashes = block, 0
        while crashes < CRASHES // BLOCKS:
            try:
                crashes += lives(Path(directory), seed)
            except BaseException:
                print(f"seed {seed}")
                raise
            seed += BLOCKS
    print(f"{crashes} crashes of {seed // BLOCKS} worlds")

"""The tests find defects (plan D13): each of these is put into a copy of the code, and some test must fail.

QUINTLOG_NIGHTLY=1 tries all of them; otherwise those that are found within seconds. `python -m tests.mutants` does the
same by hand and shows what the tests said.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mutant_list import Mutant
from tests.mutants import ALL_MUTANTS, apply, copy_of_checkout, is_found

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
QUICK = {
    "do not sync records",
    "acknowledge before the sync",
    "do not sync the directory of a new segment",
    "write once, however much of it was taken",
    "rewrite nothing above the floor",
    "lose a segment with its header",
    "give the id of an unknown directory to a new topic",
    "skip the checksum of headers",
    "pass over the oldest segments when the log begins in a gap",
    "remove files before the raised start is on disk",
    "let one topic stop the cleaning of all",
    "believe a jump of the clock that is seen twice",
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "mutant", [m for m in ALL_MUTANTS if NIGHTLY or m.name in QUICK], ids=lambda mutant: mutant.name.replace(" ", "_")
)
def test_a_test_finds_it(mutant: Mutant) -> None:
    found, output = is_found(mutant)
    assert found, output


def test_all_of_them_are_still_about_the_code(tmp_path: Path) -> None:
    assert {mutant.name for mutant in ALL_MUTANTS} >= QUICK
    assert len({mutant.name for mutant in ALL_MUTANTS}) == len(ALL_MUTANTS) >= 50
    copy_of_checkout(tmp_path)
    for mutant in ALL_MUTANTS:
        path = tmp_path / mutant.file
        whole = path.read_text()
        apply(mutant, tmp_path)
        path.write_text(whole)

"""The tests find defects (plan D13): each of these is put into a copy of the code, and some test must fail.

QUINTLOG_NIGHTLY=1 tries all of them; otherwise those that are found within seconds. `python -m tests.mutants` does the
same by hand and shows what the tests said.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mutants import ALL_MUTANTS
from tests.mutants.mutant import Mutant, problem
from tests.mutants.trial import copy_of_checkout, is_found

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
QUICK = {
    "do not sync records",
    "lose a segment with its header",
    "skip the checksum of headers",
    "remove files before the raised start is on disk",
    "believe a jump of the clock that is seen twice",
}


@pytest.mark.slow
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
    assert [text for mutant in ALL_MUTANTS if (text := problem(mutant, tmp_path))] == []


CODE = """\
class Log:
    @property
    def size(self):
        if (
            self.parts
        ):
            return self.sum()
        return 0

    def close(self):
        def one():
            self.sum()
        return 0
"""


@pytest.mark.parametrize(
    ("at", "old", "new", "changed"),
    [
        ("x.py::Log.size", "return 0", "return 1", "        return 1\n\n    def close"),
        ("x.py::Log.size", "if ( self.parts ):", "if True:", "        if True:\n            return self.sum()"),
        ("x.py::Log.size", "@property", "", "class Log:\n    \n    def size"),
        ("x.py::Log.close.one", "self.sum()", "if self:\n    self.sum()", "if self:\n                self.sum()\n"),
        ("x.py", "class Log:", "class Block:", "class Block:\n"),
    ],
)
def test_a_defect_is_put_where_it_says(at: str, old: str, new: str, changed: str) -> None:
    assert changed in Mutant("a name", at, old, new, "tests").changed(CODE)


@pytest.mark.parametrize(
    ("at", "old", "new", "message"),
    [
        ("x.py", "return 0", "return 1", "'a name': x.py has 'return 0' 2 times, not once"),
        ("x.py::Log.size", "return 5", "return 1", "'a name': x.py::Log.size has 'return 5' 0 times, not once"),
        ("x.py::Log.sum", "return 0", "return 1", "'a name': x.py has 0 functions Log.sum, not one"),
        ("x.py::Log.size", "return 0", "return (", "'(' was never closed (a name, line 8)"),
    ],
)
def test_a_defect_that_is_not_about_the_code_is_an_error(
    at: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text(CODE)
    assert problem(Mutant("a name", at, old, new, "tests"), tmp_path) == message


def test_tests_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CODE)
    mutant = Mutant("a name", "x.py::Log.size", "return 0", "return 1", "tests/test_y.py::test_it -k tests")
    assert problem(mutant, tmp_path) == "'a name': there is no tests/test_y.py"

"""Patterns that requests name, against fnmatch's."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netserver.admin.globs import BadGlob, matcher
from netserver.limits import GLOB_CHARS_MAX

CHARS = st.text("ab*?[]!-\n\udc80", max_size=12)


@given(CHARS, CHARS)
def test_the_same_names_match(glob: str, name: str) -> None:
    assert bool(matcher(glob)(name)) == fnmatchcase(name, glob)


def test_no_pattern_is_every_name() -> None:
    assert matcher(None)("anything")


def test_a_name_may_be_long_and_a_pattern_may_not() -> None:
    name = "n" * 65_535
    assert matcher(name)(name)
    with pytest.raises(BadGlob):
        matcher("*" * (GLOB_CHARS_MAX + 1))

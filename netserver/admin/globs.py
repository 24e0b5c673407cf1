"""Patterns (``*``, ``?``, ``[..]``, as in fnmatch) that a request names."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final

from netserver.limits import GLOB_CHARS_MAX

MAGIC: Final = re.compile(r"[*?\[]")


class BadGlob(Exception):
    """The pattern is too long."""


def matcher(glob: str | None) -> Callable[[str], object]:
    """What is true of names that match; of all without a pattern.

    ``re`` keeps the last 512 patterns that it has compiled, so that theirs has to be short. Raises BadGlob.
    """
    if glob is None or glob == "*":
        return lambda _name: True
    if not MAGIC.search(glob):
        return glob.__eq__
    if len(glob) > GLOB_CHARS_MAX:
        raise BadGlob(f"a pattern may have {GLOB_CHARS_MAX} characters")
    return re.compile(translate(glob)).match

"""Where a setting stands in a TOML file, so that an error can name the line."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[\s*([\w\"'.\s-]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w\"'.-]+?)\s*=")


def line_of(text: str, section: str, name: str = "") -> int:
    """The line (from 1) of a setting, or of its section's header when ``name`` is empty; 0 when it is not found.

    A guess by the usual way of writing: what stands inside of multi-line strings may mislead it.
    """
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            inside = _bare(header[1])
            if inside == section and not name:
                return number
            if name and inside.startswith(f"{section}.{name}"):
                return number
            continue
        key = _KEY.match(line)
        if key is None:
            continue
        full = f"{inside}.{_bare(key[1])}" if inside else _bare(key[1])
        if full == (f"{section}.{name}" if name else section):
            return number
    return 0


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))

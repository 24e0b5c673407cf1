"""The table of limits is what the modules say, and every limit says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.limits_page import ROOT, limits_modules, limits_of, page, shown


def test_the_page_is_what_the_modules_say() -> None:
    """To renew it: make docs."""
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert (docs / "limits.md").read_text() == page()


@pytest.mark.parametrize("path", limits_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_limit_has_a_reason(path: Path) -> None:
    limits = limits_of(path)
    assert limits
    assert [name for name, _, reason in limits if not reason] == []


def test_reasons_stand_behind_their_limits(tmp_path: Path) -> None:
    module = tmp_path / "limits.py"
    module.write_text(
        '"""Limits."""\nKIB = 1024\nA_MAX = 2\n"""Why\nA."""\n\nB_MIN: int = 1\nB_MAX = 3 * KIB\n"""Why B."""\n'
        'C_MAX = 1\n\n"""Not of C."""\n_D = 1\n'
    )
    assert limits_of(module) == [("A_MAX", 2, "Why A."), ("B_MIN", 1, "Why B."), ("B_MAX", 3072, "Why B."),
                                 ("C_MAX", 1, "")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("X_BYTES_MAX", 64 << 10, "64 KiB"), ("X_BYTES_MAX", 3 << 30, "3 GiB"), ("X_BYTES", 1500, "1,500 B"),
        ("X_MS_MAX", 1000, "1,000 ms"), ("X_S", 0.25, "0.25 s"), ("BATCH_BYTES_TARGET", 1 << 20, "1 MiB"),
        ("X_MAX", 65535, "65,535"), ("X", b"a", "b'a'"), ("X_MS_MAX", 86_400_000 * 30, "30 days"),
        ("X_BYTES", 8 << 40, "8 TiB"), ("X", True, "True"),
    ],
)  # fmt: skip
def test_values_are_shown_in_their_unit(name: str, value: object, text: str) -> None:
    assert shown(name, value) == text

"""Version of this product: written down here, and nowhere else."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
"""pyproject.toml takes it from here, so it is there without the metadata of an installed package, too, which would take
every command 30 ms to find."""


def product_version() -> str:
    """It, as all that tell it do."""
    return VERSION

"""Version of this product."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def product_version() -> str:
    """The installed version; "unknown" when it runs from a bare checkout."""
    try:
        return version("quintlog")
    except PackageNotFoundError:
        return "unknown"

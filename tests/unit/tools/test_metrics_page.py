"""The table of metrics is what a server is scraped for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tools.metrics_page import page


def test_the_page_is_what_a_server_says() -> None:
    """To renew it: make docs."""
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert (docs / "metrics.md").read_text() == asyncio.run(page())

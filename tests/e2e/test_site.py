"""The documentation as a site and as one file: complete, without a warning, and without anything from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tools.one_page import one_page

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]  # the whole site is built: 20 s of a quiet processor

ROOT = Path(__file__).resolve().parents[2]
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Loaded(HTMLParser):
    """What a browser loads for a page by itself."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (address := dict(attrs).get(LOADING.get(tag, ""))) is not None:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: a warning is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", str(place / "doctrees")]
    done = subprocess.run([*command, ".", str(place / "site")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place / "site"


@pytest.mark.slow
def test_every_page_is_in_the_navigation(site: Path) -> None:
    shown = (site / "README.html").read_text().partition("sidebar-tree")[2].partition("</aside>")[0]
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="docs/{page.stem}.html"' in shown, page.name


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for address in Loaded(page).addresses:
            assert not re.match(r"\w+:|//", address), f"{page.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.slow
def test_commands_and_calls_are_there(site: Path) -> None:
    """They are made from the code when the site is."""
    commands, calls = ((site / "docs" / f"{name}.html").read_text() for name in ("commands", "python"))
    assert 'id="logtool-groups-reset"' in commands
    assert 'id="netserver.blipmq.Subscription.seek"' in calls
    assert "fdatasync" in (site / "searchindex.js").read_text()


def test_one_file_has_all_pages_and_its_links_lead_somewhere() -> None:
    text = one_page(ROOT)
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)", outside, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert sum(heading.startswith("## ") for heading in re.findall(r"^#+ .*", outside, re.M)) > 25
    assert re.findall(r"^# .*", outside, re.M) == ["# Quintlog, all pages"]
    assert set(re.findall(r"\]\(#(.*?)\)", text)) <= anchors

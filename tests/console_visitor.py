"""Somebody with a browser at the console of a server in the running event loop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from netserver.access.key_file import add_identity
from netserver.access.rights import Right
from netserver.admin.names import TOKEN_FILE
from netserver.app import Server
from netserver.testing import running
from tests.echo import ALONE

FORM_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


def key_of(name: str) -> str:
    return f"the key of {name}, which is long"


class Visitor:
    """Keeps cookies as a browser does. Checks of every page what holds for all of them."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.origin = f"http://{server.admin_address}"
        self.form_token = ""

    async def get(self, path: str, status: int = 200, **headers: str) -> str:
        """A page's text; redirects are not followed."""
        url = URL(self.origin + path, encoded=True)
        async with self.http.get(url, headers=headers, allow_redirects=False) as answer:
            text = (await answer.read()).decode()
            assert answer.status == status, (path, answer.status, text)
            if answer.content_type == "text/html":
                check_page(answer.headers, text)
            found = FORM_TOKEN.search(text)
            self.form_token = found[1] if found is not None else self.form_token
            return text if status != 303 else answer.headers["Location"]

    async def post(self, path: str, status: int = 303, *, headers: Mapping[str, str] | None = None, **form: str) -> str:
        """Sends a form; where it leads, or the page that refuses it."""
        fields = {"form_token": self.form_token, **form}
        url = URL(self.origin + path, encoded=True)
        async with self.http.post(url, data=fields, headers=headers, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == status, (path, answer.status, text)
            return answer.headers["Location"] if status == 303 else text

    async def api(self, method: str, path: str, body: object = None) -> Any:
        """What the API answers to the operator."""
        headers = {"Authorization": f"Bearer {(self.server.data_dir / TOKEN_FILE).read_text().strip()}"}
        async with self.http.request(method, self.origin + path, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def log_in(self, key: str, base: str = "/") -> None:
        assert (await self.post(f"{base}console/login", key=key)) == f"{base}console/"
        await self.get(f"{base}console/")


def check_page(headers: Mapping[str, str], text: str) -> None:
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    Inspector().feed(text)


class Inspector(HTMLParser):
    """Fails where a script, style or handler stands in a page."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert tag not in ("style", "iframe", "object", "base", "b", "i"), tag
        assert tag != "script" or "src" in names
        assert not [name for name in names if name == "style" or name.startswith("on")], attrs


@contextlib.asynccontextmanager
async def visiting(
    settings: dict[str, dict[str, Any]] | None = None,
    identities: Mapping[str, dict[str, Any]] | None = None,
    directory: Path | None = None,
) -> AsyncIterator[Visitor]:
    """A server, and somebody who is not logged in."""
    own: dict[str, dict[str, Any]] = {**ALONE, **(settings or {})}
    if identities is not None:
        assert directory is not None
        path = directory / "access"
        path.write_text("")
        for name, fields in identities.items():
            add_identity(path, {"name": name} | {right.value: [] for right in Right} | fields, key_of(name))
        own["access"] = {"file": str(path)}
    jar = aiohttp.CookieJar(unsafe=True)
    async with running(None, own) as server, aiohttp.ClientSession(cookie_jar=jar) as http:
        yield Visitor(server, http)

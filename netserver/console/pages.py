"""Pages of the console: templates, addresses, headers. Templates are compiled by a thread at the first page."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from aiohttp import web

from netserver.access.rights import Role
from netserver.admin.slices import sliced
from netserver.config.console import FULL
from netserver.console import formatting
from netserver.version import product_version

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from engine.slices import Slices
    from netserver.access.quotas import Seat
    from netserver.admin.callers import Caller
    from netserver.config.console import ConsoleSection
    from netserver.console.login import Session

HERE: Final = Path(__file__).parent
PREFIX: Final = "console/"
STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "live.js": "text/javascript",
    "refresh.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every page: nothing but what this server has is loaded, no script or style stands in a page, nobody frames it."""


class Refused(Exception):
    """A page that is not given; ``status`` and text are shown."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Visit:
    """One request of somebody who is logged in.

    Attributes:
        parts: of the path below ``/console/``, names of topics as they are.
        query, form: what is filled in; empty fields are left out.
        seat: their connection.
        may_still, watched: whether what goes on for long may go on, and being called when not: rights change meanwhile.
        settings: the section of the configuration that is in force.
    """

    request: web.BaseRequest
    session: Session
    caller: Caller
    seat: Seat
    settings: ConsoleSection
    parts: list[bytes]
    query: dict[str, str]
    form: dict[str, str] = field(default_factory=dict)
    may_still: Callable[[], bool] = bool
    watched: Callable[[Callable[[], None]], AbstractContextManager[None]] = lambda _end: nullcontext()

    @property
    def section(self) -> str:
        """The first part of the path."""
        return self.parts[0].decode("utf-8", "replace")

    @property
    def changes(self) -> bool:
        """Whether forms that change something are shown: to operators, unless the console only shows."""
        return self.settings.mode == FULL and self.session.identity.has_role(Role.OPERATOR)

    @property
    def sees_payloads(self) -> bool:
        """Whether keys and values are shown."""
        return self.settings.payloads and self.session.identity.has_role(Role.READER)


@dataclass(frozen=True, slots=True)
class Page:
    """What a view shows: a template and what it is given."""

    template: str
    title: str
    values: dict[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class GoTo:
    """After a form: where the browser goes (as `link`), and what is told there."""

    parts: tuple[str | bytes, ...]
    told: str
    query: dict[str, str] = field(default_factory=dict)


Answer = Page | GoTo | web.StreamResponse


def link(base_path: str, *parts: str | bytes, **query: Any) -> str:
    """The address of a page; parts that are bytes are names."""
    path = "/".join(formatting.part_of_path(part) if isinstance(part, bytes) else part for part in parts)
    wanted = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"{base_path}{PREFIX}{path}{'?' + urlencode(wanted) if wanted else ''}"


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """File name -> content and a digest of it."""
    found = {name: (HERE / "static" / name).read_bytes() for name in STATIC}
    return {name: (content, hashlib.sha256(content).hexdigest()[:16]) for name, content in found.items()}


@cache
def _environment() -> Environment:
    """Runs in a thread: to compile the templates takes a quarter of a second."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters |= {
        "text": formatting.text_of,
        "name": formatting.name_text,
        "count": formatting.count_text,
        "size": formatting.size_text,
        "time": formatting.time_text,
        "span": formatting.span_text,
        "hex": formatting.hex_dump,
        "paused": formatting.paused_text,
        "retention": formatting.retention_text,
    }
    made.globals |= {
        "version": product_version(),
        "static": {name: digest for name, (_, digest) in static_files().items()},
    }
    for path in sorted((HERE / "templates").glob("*.html")):
        made.get_template(path.name)
    return made


class Pages:
    """Writes pages."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._made: asyncio.Future[Environment] | None = None

    async def response(self, page: Page, base_path: str, visit: Visit | None = None) -> web.Response:
        """A page as an answer; written in slices, so that nobody waits for a long one."""
        template = (await self._get_environment()).get_template(page.template)

        def url(*parts: str | bytes, **query: Any) -> str:
            return link(base_path, *parts, **query)

        told = ""
        if visit is not None and "told" in visit.query:
            told, visit.session.told = visit.session.told, ""
        values = {"title": page.title, "url": url, "visit": visit, "told": told, "token": partial(_token, visit)}
        values |= page.values
        pieces = [piece async for piece in sliced(self._slices, template.generate(values))]
        body = "".join(pieces).encode("utf-8", "backslashreplace")
        return web.Response(body=body, status=page.status, content_type="text/html", charset="utf-8", headers=HEADERS)

    async def _get_environment(self) -> Environment:
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(_environment))
        return await asyncio.shield(self._made)


def _token(visit: Visit | None) -> Markup:
    """The field of a form that shows that it is of this session."""
    from markupsafe import Markup

    assert visit is not None
    return Markup('<input type="hidden" name="form_token" value="{}">').format(visit.session.form_token)


def static_response(name: str, digest: str) -> web.Response:
    """A script, style or picture. Raises Refused."""
    found = static_files().get(name)
    if found is None:
        raise Refused(404, "There is no such file.")
    content, current = found
    kept = {"Cache-Control": "max-age=31536000, immutable"} if digest == current else {}
    return web.Response(body=content, content_type=STATIC[name], charset="utf-8", headers={**HEADERS, **kept})

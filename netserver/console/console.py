"""The console's requests: who they come from, whether they may, which view answers them.

Every page but the login needs a session (`netserver.console.login`) and an entry of `netserver.access.table.PAGES`.
What changes something is a POST with the session's form token, from a page of this server.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from netserver.access.rights import Role
from netserver.access.table import PAGES, Route, route_of, topic_of
from netserver.admin.callers import Caller, is_of_another_site
from netserver.admin.problems import problem_of
from netserver.config.console import FULL, OFF
from netserver.console.connections import ConnectionViews
from netserver.console.formatting import name_of_part
from netserver.console.groups import GroupViews
from netserver.console.history import History
from netserver.console.limits import CONSOLE_FORM_BYTES_MAX, CONSOLE_FORM_FIELDS_MAX, CONSOLE_SESSION_S
from netserver.console.login import Logins
from netserver.console.overview import OverviewViews
from netserver.console.pages import PREFIX, Answer, GoTo, Page, Pages, Refused, Visit, link, static_response
from netserver.console.records import RecordViews
from netserver.console.settings import SettingsViews
from netserver.console.storage import StorageViews
from netserver.console.topics import TopicViews
from netserver.http.bodies import Busy

if TYPE_CHECKING:
    from netserver.admin.access import SubscriptionsApi
    from netserver.admin.api import Api
    from netserver.admin.callers import Known
    from netserver.admin.groups import GroupsApi
    from netserver.admin.http import HttpServer
    from netserver.admin.served import Served
    from netserver.http.records_api import RecordsApi

log = logging.getLogger(__name__)

View = Callable[[Visit], Awaitable[Answer]]
PAYLOADS: Final = frozenset({"records", "live", "download"})
"""Third parts of paths of pages that show keys and values."""


class Console:
    """All pages.

    Args:
        token: opens everything, as it does the API.
        directory: tells this server's cookie from that of another one on the same host.
    """

    def __init__(
        self,
        server: Served,
        api: Api,
        subscriptions: SubscriptionsApi,
        groups: GroupsApi,
        records: RecordsApi,
        *,
        token: str,
        directory: str,
    ) -> None:
        self._server = server
        self._token = token
        self._groups = groups
        self._cookie = f"quintlog_{hashlib.sha256(directory.encode()).hexdigest()[:8]}"
        self._pages = Pages(server.log.slices)
        self._logins = Logins(server.access)
        self._history = History(server)
        self.views: dict[str, View] = {
            **OverviewViews(server, api, self._history).views(),
            **TopicViews(server, api).views(),
            **RecordViews(server, api, records).views(),
            **GroupViews(groups, subscriptions).views(),
            **ConnectionViews(api).views(),
            **StorageViews(server, api).views(),
            **SettingsViews(server).views(),
        }

    def start(self) -> None:
        """Begin to watch rates and room."""
        self._history.start()

    def close(self) -> None:
        """Stop watching."""
        self._history.close()

    @property
    def is_on(self) -> bool:
        """Whether there are pages."""
        return self._server.config.console.mode != OFF

    @property
    def _base_path(self) -> str:
        return self._server.config.console.base_path

    def login_path(self, known: Known) -> str:
        """Path of a login address for somebody who has shown who they are."""
        return link(self._base_path, "login", self._logins.make_code(known))

    def path_below(self, path: str) -> str | None:
        """What follows ``/console/`` in a path, with the base path or, as some proxies leave it, without.

        Returns:
            None: no page of the console. ``/`` alone is one: it leads there.
        """
        if self.is_on:
            for base in (self._base_path, "/"):
                below = path.removeprefix(base)
                if path.startswith(base) and (below in ("", PREFIX[:-1]) or below.startswith(PREFIX)):
                    return below.removeprefix(PREFIX) if below.startswith(PREFIX) else "/"
        return None

    async def handle(self, request: web.BaseRequest, below: str, http: HttpServer) -> web.StreamResponse:
        """The answer to a request for a page."""
        try:
            return await self._answer(request, below, http)
        except Refused as error:
            refused = error
        except ConnectionError:
            refused = Refused(400, "The request was cut short.")
        except Busy as error:
            refused = Refused(503, f"{error}.")
        except Exception:
            log.exception("console: error in %s %s", request.method, request.path[:200])
            refused = Refused(500, "Internal error; the server's log tells more.")
        return await self._pages.response(_told(refused), self._base_path)

    # --- inside

    async def _answer(self, request: web.BaseRequest, below: str, http: HttpServer) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            raise Refused(405, "Pages answer GET and POST only.")
        if below == "/":
            return _redirect(link(self._base_path))
        parts = [name_of_part(unquote_to_bytes(part)) for part in below.split("/")]
        if parts[0] == b"static" and len(parts) == 2:
            return static_response(parts[1].decode("ascii", "replace"), request.query_string)
        is_form = request.method == "POST"
        if is_form or "Upgrade" in request.headers:
            _check_origin(request)
        if parts[0] == b"login":
            return await self._login(request, parts[1:], http)
        cookie = request.cookies.get(self._cookie, "")
        session = self._logins.session(cookie) if cookie else None
        if session is None:
            if is_form:
                raise Refused(403, "You are not logged in any more; log in and try again.")
            return _redirect(link(self._base_path, "login", next=request.raw_path[:2000]))
        with http.in_work(request, is_operator=session.identity.has_role(Role.OPERATOR)):
            form = await _form(request) if is_form else {}
            if is_form and not session.sent(form.pop("form_token", "")):
                raise Refused(403, "This form is of another login; load its page again.")
            if parts == [b"logout"] and is_form:
                self._logins.end(cookie)
                return self._forget(_redirect(link(self._base_path, "login")))
            caller = self._caller(request, http, known=session.known)
            query = {name: value for name, value in request.query.items() if value}
            settings = self._server.config.console
            return await self._view(Visit(request, session, caller, http.seat(request), settings, parts, query, form))

    def _caller(self, request: web.BaseRequest, http: HttpServer, **how: Any) -> Caller:
        return Caller(self._server.access, self._token, request, partial(http.pause, request), base=f"/{PREFIX}", **how)

    async def _view(self, visit: Visit) -> web.StreamResponse:
        try:
            answer = await self._called(visit)
        except Refused as refused:
            answer = _told(refused)
        if isinstance(answer, GoTo):
            visit.session.told = answer.told
            return _redirect(link(self._base_path, *answer.parts, **answer.query, told=1))
        if not isinstance(answer, Page):
            return answer
        response = await self._pages.response(answer, self._base_path, visit)
        visit.caller.sent(len(response.body) if isinstance(response.body, bytes) else 0, 0)
        return response

    def _allowed(self, visit: Visit) -> Route:
        """The entry of the table that allows a request. Raises Refused."""
        method = "POST" if visit.request.method == "POST" else "GET"
        route, caller = route_of(method, visit.parts, PAGES), visit.caller
        if route is None:
            raise Refused(404, "There is no such page.")
        is_group = route.path[:2] == ("groups", "NAME")
        topic = self._groups.topic_of(visit.parts[1], visit.request.query) if is_group else topic_of(route, visit.parts)
        if not caller.may_begin(route, visit.parts) or not caller.may(
            route, topic, visit.form, self._server.log.catalog
        ):
            raise Refused(403, f"Not allowed: {caller.why_not}.")
        if method == "POST" and visit.settings.mode != FULL:
            raise Refused(403, "The console shows only: [console] mode is read-only.")
        if not visit.settings.payloads and len(route.path) > 2 and route.path[2] in PAYLOADS:
            raise Refused(403, "Keys and values are not shown here: [console] payloads is off.")
        visit.may_still = partial(caller.still_may, route, topic)
        visit.watched = partial(caller.watched, route, topic)
        return route

    async def _called(self, visit: Visit) -> Answer:
        """What the view of a request gives, as far as rights and quotas allow. Raises Refused."""
        caller = visit.caller
        try:
            caller.sit(visit.seat)
            await caller.wait_for_rate()
            route = self._allowed(visit)
            answer = await self.views[f"{route.method} {'/'.join(route.path)}"](visit)
        except Refused:
            raise
        except Exception as error:
            caller.failed(error)
            problem = problem_of(error)
            if problem is None or isinstance(error, ConnectionError):
                raise
            raise Refused(problem[0], f"{problem[2]}.") from None
        caller.done()
        return answer

    # --- logging in

    async def _login(self, request: web.BaseRequest, parts: list[bytes], http: HttpServer) -> web.StreamResponse:
        with http.giving_way(request):  # nobody knows yet who sends it
            form = await _form(request) if request.method == "POST" else {}
        home = link(self._base_path)
        wanted = form.get("next") or request.query.get("next", "")
        next_path = wanted if wanted.startswith(home) and wanted.isascii() and wanted.isprintable() else home
        if len(parts) == 1 and request.method == "GET":
            known = self._logins.use_code(parts[0].decode("ascii", "replace"))
            if known is not None:
                return self._logged_in(request, known, home)
            return await self._login_page(
                next_path, "This address was used, or is too old. `logtool console` prints another."
            )
        if parts:
            raise Refused(404, "There is no such page.")
        if request.method != "POST":
            return await self._login_page(next_path)
        caller = self._caller(request, http, key=form.get("key", "").strip() or None)
        if caller.known is None:
            await http.pause(request, caller.refused_after_s, gives_way=True)
            return await self._login_page(next_path, "This is no key that counts here.", 403)
        return self._logged_in(request, caller.known, next_path)

    async def _login_page(self, next_path: str, problem: str = "", status: int = 200) -> web.StreamResponse:
        page = Page("login.html", "Log in", {"next_path": next_path, "problem": problem}, status)
        return await self._pages.response(page, self._base_path)

    def _logged_in(self, request: web.BaseRequest, known: Known, next_path: str) -> web.StreamResponse:
        response = _redirect(next_path)
        response.set_cookie(
            self._cookie,
            self._logins.begin(known),
            path=link(self._base_path),
            max_age=int(CONSOLE_SESSION_S),
            httponly=True,
            samesite="Strict",
            secure=request.secure or request.headers.get("X-Forwarded-Proto") == "https",
        )
        return response

    def _forget(self, response: web.StreamResponse) -> web.StreamResponse:
        response.del_cookie(self._cookie, path=link(self._base_path))
        return response


def _told(refused: Refused) -> Page:
    return Page("message.html", "Not done", {"text": str(refused)}, refused.status)


def _redirect(path: str) -> web.StreamResponse:
    return web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})


def _check_origin(request: web.BaseRequest) -> None:
    """Raises Refused: a page of another server sends this. Browsers tell where a form or a WebSocket comes from."""
    if is_of_another_site(request):
        raise Refused(403, "This comes from a page of another server. A proxy has to pass the Host header on.")


async def _form(request: web.BaseRequest) -> dict[str, str]:
    """The fields of a form that are filled in. Raises Refused."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refused(415, "This is no form.")
    content = bytearray()
    async for piece in request.content.iter_any():
        content += piece
        if len(content) > CONSOLE_FORM_BYTES_MAX:
            raise Refused(413, f"A form may have {CONSOLE_FORM_BYTES_MAX} bytes.")
    try:
        fields = parse_qsl(content.decode("ascii", "replace"), max_num_fields=CONSOLE_FORM_FIELDS_MAX)
    except ValueError:
        raise Refused(413, f"A form may have {CONSOLE_FORM_FIELDS_MAX} fields.") from None
    return dict(fields)

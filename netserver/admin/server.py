"""Admin HTTP: health, metrics, and the API by which tools look at and change a running server.

====== =============================== ==================================================================
GET    /healthz                        200 while the event loop turns
GET    /readyz                         200 when publishing and reading work, else 503 with the reason; names partitions
                                       that cannot be opened
GET    /directory                      which data directory it has: ``DEVICE:INODE``
GET    /metrics                        Prometheus text; no series per topic
GET    /metrics/topics                 series per topic; ``?topic=GLOB&family=NAME``
GET    /summary                        version, and how much there is; for this machine only, where no token is needed
GET    /v1/openapi.json                this API as OpenAPI 3.1 describes it
GET    /v1/version                     which version runs
GET    /v1/damage                      what was found damaged, and partitions that are not served as they should be
GET    /v1/settings                    every setting in force, and where it comes from
GET    /v1/status                      the server at a glance
GET    /v1/topics                      all topics; ``?name=GLOB``
POST   /v1/topics                      make one: ``{"name", "partitions", "config": {setting: text}}``
GET    /v1/topics/NAME                 one topic
PATCH  /v1/topics/NAME                 ``{"config": {setting: text}}``; "default" takes a setting back
DELETE /v1/topics/NAME                 delete it and its records
GET    /v1/topics/NAME/segments        its segment files, by partition
POST   /v1/topics/NAME/trim            ``{"partition", "before": offset}``: raise the start of the log
POST   /v1/topics/NAME/records         publish: ``{"partition", "records": [{"value", "key", ...}]}``; tells offsets;
                                       lines of JSON or a split body while they come (``netserver.http``)
GET    /v1/topics/NAME/records         read or follow: lines, raw bytes, a document or a WebSocket (``netserver.http``)
GET    /v1/segments/ID/PARTITION/FILE  what a segment file holds: header, batches, footer; all verified (``upkeep``)
GET    /v1/segments/ID/PARTITION/FILE/records  its records
POST   /v1/verify                      verify every byte of the log (``upkeep``)
POST   /v1/backups                     ``{"name"}``: copy the log below [admin] backup_dir (``upkeep``)
POST   /v1/reload                      read the configuration again, as SIGHUP does
POST   /v1/staged                      keep rows for a commit (msgpack, see ``staged_commits``); tells its name;
                                       ``?writer=NAME&batch=NUMBER``: for that batch, and needless once it is there
POST   /v1/staged/drop                 ``{"names"}``: remove staged files
POST   /v1/commits                     ``{"writer", "batch", "names"}``: append staged rows, each batch exactly once
GET    /v1/commits                     the last batch of every writer
GET    /v1/commits/WRITER              the last batch of a writer
POST   /v1/commits/WRITER/abandon      ``{"batch"}``: give up the rest of one that is partly in the log
GET    /v1/connections                 open connections
DELETE /v1/connections/NUMBER          abort one
GET    /v1/sessions                    sessions of the JSON streaming protocol; ``?uuid=GLOB``
GET    /v1/sessions/UUID               one session
DELETE /v1/sessions/UUID               remove it; its connection ends
GET    /v1/subscriptions               durable subscriptions; ``?topic=GLOB``
GET    /v1/subscriptions/ID            one of them, and where the log under it begins and ends
GET    /v1/subscriptions/ID/pending    what it has delivered and nobody acknowledged
POST   /v1/subscriptions/ID/reset      ``{"next_offset"}``: forget that and go on there
POST   /v1/subscriptions/ID/pause      deliver nothing until ``resume``, over restarts
POST   /v1/subscriptions/ID/resume     go on
POST   /v1/subscriptions/ID/redrive    ``{"from", "to", "limit"}``: dead letters back into a topic
DELETE /v1/subscriptions/ID            remove it
GET    /v1/groups                      durable positions by name; ``?name=GLOB&topic=GLOB&protocol=NAME``
POST   /v1/groups                      a group of HTTP consumers: ``{"name", "topic", "from", "partitions"}``
GET    /v1/groups/NAME                 one group; ``?protocol=NAME&topic=NAME`` where several have the name
GET    /v1/groups/NAME/records         records from its position on (``netserver.http``)
POST   /v1/groups/NAME/positions       ``{"positions": [{"partition", "next_offset"}]}``: what is before is done with
POST   /v1/groups/NAME/reset           ``{"to": POSITION, "dry_run", "partition"}``: go on there; counts what comes
POST   /v1/groups/NAME/pause           deliver nothing until ``resume``, over restarts
POST   /v1/groups/NAME/resume          go on
POST   /v1/groups/NAME/redrive         ``{"from", "to", "limit"}``: its dead letters back into a topic
DELETE /v1/groups/NAME                 remove it
POST   /v1/console/logins              a path of the console that logs in whoever opens it first, for a short time
GET    /v1/keys                        identities of the access file, without their keys
POST   /v1/keys                        a new one: ``{"name", "publish": [GLOB], ..}`` as in the file; tells the key
DELETE /v1/keys/NAME                   revoke it; its connections end
POST   /v1/keys/NAME/rotate            another key; ``{"end_old": true}``: the old one counts no longer
POST   /v1/keys/NAME/test              ``{"right", "topic"}``: whether it has that right
====== =============================== ==================================================================

All below ``/console/`` is pages for people (``netserver.console``), which know their readers by a cookie.

``/v1`` needs ``Authorization: Bearer`` with the content of ``admin.token`` in the data directory, which may do
everything, or with a key of the access file, or a client certificate that is in it: `netserver.access.table` says what
each may. Who is at the rate of their quotas waits a little, or is told by 429 and ``Retry-After`` when to come again.
NAME is percent-encoded, as topic names may be any bytes. In documents bytes are ``value`` when they are UTF-8, else
``value_base64`` (so for ``name`` and ``key``). Lists are ``{"schema": 1, "items": [..]}``; errors are problem documents
(RFC 9457), whose ``code`` programs tell them by.

A request with ``Quintlog-Directory: DEVICE:INODE`` is refused when the server has another directory: who found its
address in a file of a directory means that directory, and the file may be old or copied.

A request whose Host header is a name that is neither ``localhost`` nor configured is refused: a web page whose name
resolves to 127.0.0.1 must not reach this server through the browser of somebody on this machine.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from aiohttp import web

from engine.files.lock import identity_of
from engine.files.system import SystemFiles, read_whole_file, write_new_file
from engine.limits import SMALL_FILE_BYTES_MAX
from netserver.access.exposed import warn_of_readers
from netserver.access.quotas import QuotaReached, Seat
from netserver.access.table import Route, methods_of, route_of, topic_of
from netserver.admin.access import KeysApi, SubscriptionsApi
from netserver.admin.answers import json_answer
from netserver.admin.api import Api, Conflict
from netserver.admin.bodies import Body, NotJson, invite, read_body, read_document
from netserver.admin.callers import Caller
from netserver.admin.globs import BadGlob, matcher
from netserver.admin.groups import GroupsApi
from netserver.admin.http import HttpServer, Tls
from netserver.admin.inspection import InspectionApi
from netserver.admin.metrics import Metrics
from netserver.admin.names import DIRECTORY_HEADER, DIRECTORY_PATH, TOKEN_FILE
from netserver.admin.operations import Call, Operation, of_commits, of_keys, of_positions, of_topics
from netserver.admin.places import Places
from netserver.admin.problems import problem_of
from netserver.admin.slices import json_bytes
from netserver.admin.staged_commits import Staging
from netserver.admin.upkeep import ROUTES as UPKEEP_ROUTES
from netserver.admin.upkeep import Upkeep
from netserver.config.settings import Address
from netserver.console.console import Console
from netserver.console.limits import CONSOLE_LOGIN_S
from netserver.errors import ServerError
from netserver.http.errors import BadRequest
from netserver.http.openapi import fields_of, openapi, operation_of
from netserver.http.query import query_of
from netserver.http.records_api import RecordsApi, streams_in
from netserver.limits import ADMIN_BODY_BYTES, ADMIN_REQUESTS_REMEMBERED, ADMIN_SHUTDOWN_S

if TYPE_CHECKING:
    from netserver.admin.served import Served

log = logging.getLogger(__name__)

PUBLISH: Final = "POST topics/TOPIC/records"
BODY_TYPES: Final = (
    'a publish takes a document ({"records": [{"value": "text"}]}), lines of JSON with the header Content-Type: '
    "application/x-ndjson, or any body whose records ?split=lines, nul, length or none tells apart, as in "
    "curl --data-binary @FILE 'http://HOST:PORT/v1/topics/TOPIC/records?split=lines'"
)
HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>[\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
"""A Host header: a name or an address, and perhaps a port."""


def read_token(data_dir: Path) -> str:
    """The admin token of a data directory; made at the first start, readable by its owner only."""
    path = data_dir / TOKEN_FILE
    try:
        content = read_whole_file(SystemFiles(), path, SMALL_FILE_BYTES_MAX)
        if content is not None:
            token = content.decode("ascii").strip()
            if token:
                warn_of_readers("the token", path)
                return token
            path.unlink()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {path}: {error}; remove it, and the next start makes a new one") from None
    token = secrets.token_urlsafe(32)
    try:
        write_new_file(SystemFiles(), path, token.encode() + b"\n", 0o600)
    except OSError as error:
        raise ServerError(f"cannot make {path}: {error.strerror}; --admin off does without it") from None
    return token


class AdminServer:
    """The HTTP listener. Its requests run in the server's event loop and are short."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._token = read_token(server.data_dir)
        self._directory = identity_of(server.data_dir)
        self._metrics = Metrics(server)
        self._api = Api(server)
        self._records = RecordsApi(server, self._api)
        self._subscriptions = SubscriptionsApi(server, self._api)
        self._groups = GroupsApi(server, self._api, self._subscriptions)
        self._inspection = InspectionApi(server, self._api)
        self._upkeep = Upkeep(server)
        self.console = Console(
            server,
            self._api,
            self._subscriptions,
            self._groups,
            self._records,
            token=self._token,
            directory=self._directory,
        )
        self._operations: dict[str, Operation] = {
            **of_topics(self._api, self._inspection),
            **of_commits(Staging(server, self._api)),
            **of_positions(self._subscriptions, self._groups),
            **of_keys(KeysApi(server)),
            "POST console/logins": self._console_login,
        }
        self._http: HttpServer | None = None

    def start(self, address: Address, tls: Tls = lambda: None) -> Address:
        """Listen; the address that it really has.

        Args:
            tls: gives the context in force.

        Raises:
            ListenError: says what to do.
        """
        self.console.start()
        self._http = HttpServer(self._handle, Places(self._server.gate))
        return self._http.listen(address, tls)

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that listen."""
        return self._http.sockets if self._http is not None else []

    async def close(self, within_s: float = ADMIN_SHUTDOWN_S) -> None:
        """Stop listening and end what is open, in so many seconds."""
        self.console.close()
        if self._http is not None:
            await self._http.close(within_s)
            self._http = None

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return self._http.connection_count if self._http is not None else 0

    # --- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._host_allowed(request.headers.getall("Host", [])):
            return _error(421, "wrong_host", "this name does not belong to the server; see [admin] hosts")
        if request.headers.get(DIRECTORY_HEADER, self._directory) != self._directory:
            return _error(421, "wrong_directory", "this server has another data directory")
        path = request.raw_path.partition("?")[0]
        http = self._http
        assert http is not None
        if not path.startswith("/v1/"):
            below = self.console.path_below(path)
            return await (self._public(request, path) if below is None else self.console.handle(request, below, http))
        caller = Caller(self._server.access, self._token, request, partial(http.pause, request))
        if caller.identity is None:
            with suppress(ConnectionError):  # nobody waits for the answer any more
                await http.pause(request, caller.refused_after_s, gives_way=True)
            text = f"needs Authorization: Bearer with the content of {TOKEN_FILE} in the data directory, or a key"
            return _error(401, "unauthorized", text, {"WWW-Authenticate": "Bearer"})
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return _error(415, "content_encoding", "a request body must not be compressed")
        if (request.content_length or 0) > ADMIN_BODY_BYTES and not (path.endswith("/records") and streams_in(request)):
            return _too_large()
        try:
            with http.in_work(request, is_operator=caller.is_operator):
                seat = http.seat(request)
                caller.sit(seat)
                await caller.wait_for_rate()
                return await self._call_api(request, path, caller, seat)
        except ConnectionError:  # the client went away in the middle of its body: nobody reads this answer
            return _error(400, "disconnected", "the request's body was cut short")
        except Exception as error:
            caller.failed(error)
            problem = problem_of(error)
            if isinstance(error, QuotaReached):  # who comes again at once would be answered as fast as we can
                wait_s = self._server.access.guard.refused(caller.identity.name)
                with suppress(ConnectionError):
                    await http.pause(request, wait_s, gives_way=True)
            if problem is not None:
                return _error(*problem)
            if isinstance(error, web.HTTPRequestEntityTooLarge):
                return _too_large()
            log.exception("admin: error in %s %s", request.method, path[:200])
            return _error(500, "internal", "internal error; the server's log tells more")

    async def _public(self, request: web.BaseRequest, path: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return _error(405, "method", "GET only", {"Allow": "GET, HEAD"})
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            reason = self._api.not_ready_reason()
            return web.Response(status=503 if reason else 200, text=f"{reason or self._api.ready_text()}\n")
        if path == DIRECTORY_PATH:
            return web.Response(text=f"{self._directory}\n")
        if path == "/summary":
            if not _is_of_here(request):
                return _error(404, "not_found", "no /summary for other machines; /v1/status needs a token")
            return web.json_response(self._inspection.summary())
        if path == "/metrics":
            return _prometheus(await self._metrics.render())
        if path == "/metrics/topics":
            query = request.query
            try:
                matches = matcher(query.get("topic"))
            except BadGlob as error:
                return _error(400, "bad_request", str(error))
            return _prometheus(await self._metrics.render_topics(matches, query.getall("family", [])))
        return _error(404, "not_found", f"no {path[:200]}")

    async def _call_api(self, request: web.BaseRequest, path: str, caller: Caller, seat: Seat) -> web.StreamResponse:
        parts, entry, parameters = found(request.method, path)
        if entry is None:
            return _no_route(request.method, path, parts)
        if not caller.may_begin(entry, parts):
            return _error(403, "forbidden", caller.why_not)
        if unknown := query_of(request).keys() - parameters.keys():
            there = f"; there are {', '.join(parameters)}" if parameters else ""
            raise BadRequest(f"no parameter {min(unknown)[:100]!r}{there}")
        if parts[2:] == (b"records",) and (request.method == "GET" or streams_in(request)):
            return await self._call_records(request, parts, self._topic_of(entry, parts, request), caller, entry, seat)
        if request.method in ("POST", "PATCH") and not caller.is_operator:
            self._count_as_client(request)  # a body may come slowly
        await invite(request)
        with self._records.room.share() as hold:
            content = await read_body(request, hold) if request.method in ("POST", "PATCH") else b""
            return await self._answered(request, entry, parts, caller, content)

    async def _answered(
        self, request: web.BaseRequest, entry: Route, parts: tuple[bytes, ...], caller: Caller, content: Body
    ) -> web.StreamResponse:
        """The answer to a request whose body has come whole."""
        try:
            body = await read_document(content) if parts != (b"staged",) else {}
        except NotJson as error:
            if entry.name != PUBLISH:
                raise
            raise BadRequest(f"{error}; {BODY_TYPES}") from None
        records = body.get("records")
        caller.received(len(content), len(records) if isinstance(records, list) else 0)
        topic = self._topic_of(entry, parts, request)  # now: a group may have become another one while the body came
        if not caller.may(entry, topic, body, self._server.log.catalog):
            return _error(403, "forbidden", caller.why_not)
        if (known := fields_of(entry)) is not None and (unknown := body.keys() - known):
            types = f"; {BODY_TYPES}" if entry.name == PUBLISH else ""
            raise BadRequest(f"no field {min(unknown)!r}; there are {', '.join(sorted(known))}{types}")
        if parts == (b"openapi.json",):
            return web.Response(body=openapi_json(), content_type="application/json")
        if entry.name in UPKEEP_ROUTES:
            with caller.watched(entry, topic, partial(_cut_off, request)):
                response = await self._upkeep.answer(request, entry.name, parts, body, caller)
            caller.done()
            return response
        answer = await self._operations[entry.name](Call(caller, parts, query_of(request), body, content))
        content = await json_bytes(self._server.log.slices, answer)
        caller.done()
        caller.sent(len(content), 0)
        status = operation_of(entry).status
        return web.Response(body=content, status=status, content_type="application/json", charset="utf-8")

    async def _call_records(
        self,
        request: web.BaseRequest,
        parts: tuple[bytes, ...],
        topic: bytes | None,
        caller: Caller,
        entry: Route,
        seat: Seat,
    ) -> web.StreamResponse:
        """What is neither read nor answered in one piece."""
        if not caller.may(entry, topic, {}, self._server.log.catalog):
            return _error(403, "forbidden", caller.why_not)
        self._count_as_client(request)
        may = partial(caller.still_may, entry, topic)
        if request.method == "GET":
            with caller.subscribed(seat), caller.watched(entry, topic, partial(_cut_off, request)):
                if parts[0] == b"groups":
                    return await self._records.read_group(request, parts[1], self._groups, caller, may)
                return await self._records.read(request, parts[1], caller, may)
        await invite(request)
        answer = await self._records.publish(request, parts[1], caller, may)
        caller.done()
        return json_answer(request, answer, self._server.log.now_ms())

    def _count_as_client(self, request: web.BaseRequest) -> None:
        assert self._http is not None
        self._http.count_as_client(request)

    def _topic_of(self, route: Route, parts: tuple[bytes, ...], request: web.BaseRequest) -> bytes | None:
        """The topic that a request is about, as far as its path tells."""
        if route.path[:2] == ("groups", "NAME"):
            return self._groups.topic_of(parts[1], query_of(request))
        return topic_of(route, parts)

    async def _console_login(self, call: Call) -> dict[str, Any]:
        known = call.caller.known
        assert known is not None
        if not self.console.is_on:
            raise Conflict("the console is off: [console] mode says so")
        return {"path": self.console.login_path(known), "expires_seconds": CONSOLE_LOGIN_S}

    def _host_allowed(self, headers: list[str]) -> bool:
        host = host_named(headers[0]) if len(headers) == 1 else None
        return host is not None and (not host or host in self._server.config.admin.hosts)


def _cut_off(request: web.BaseRequest) -> None:
    """What is on its way to a reader that may not read any more is not sent."""
    if request.transport is not None:
        request.transport.abort()


def _is_of_here(request: web.BaseRequest) -> bool:
    try:
        return ipaddress.ip_address(str(request.remote)).is_loopback
    except ValueError:
        return False


@lru_cache(ADMIN_REQUESTS_REMEMBERED)
def host_named(header: str) -> str | None:
    """The name that a Host header gives a server; empty: an address, or this machine's name; None: it is no header."""
    match = HOST.fullmatch(header)
    if match is None:
        return None
    host = (match["six"] or match["name"]).lower()
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return ""
    return "" if host == "localhost" else host


@lru_cache(ADMIN_REQUESTS_REMEMBERED)
def found(method: str, path: str) -> tuple[tuple[bytes, ...], Route | None, Mapping[str, object]]:
    """The parts of a path after ``/v1/``, decoded, its route (None: there is none), and which parameters that has."""
    parts = tuple(unquote_to_bytes(part) for part in path.removeprefix("/v1/").split("/"))
    entry = route_of(method, parts)
    return parts, entry, operation_of(entry).query if entry is not None else {}


@cache
def openapi_json() -> bytes:
    """The description of the API."""
    return json.dumps(openapi()).encode()


def _prometheus(content: bytes) -> web.Response:
    return web.Response(body=content, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _too_large() -> web.Response:
    return _error(413, "too_large", f"a request body may have {ADMIN_BODY_BYTES} bytes")


def _no_route(method: str, path: str, parts: tuple[bytes, ...]) -> web.Response:
    """What is at this path is had by other methods, if anything is there."""
    allowed = methods_of(parts)
    if not allowed:
        return _error(404, "not_found", f"no {method} {path[:200]}")
    return _error(405, "method", f"{path[:200]} takes {', '.join(allowed)}", {"Allow": ", ".join(allowed)})


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """A problem document (RFC 9457); ``code`` is what programs tell errors by."""
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": message, "code": code}
    return web.json_response(problem, status=status, headers=headers, content_type="application/problem+json")

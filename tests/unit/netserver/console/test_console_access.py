"""The console's doors: logging in, once only by an address; roles; forms of other sites; modes; a proxy's path."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from netserver.access.rights import Right, Role
from netserver.access.table import PAGES
from netserver.admin.callers import OPERATOR, Known
from netserver.admin.names import TOKEN_FILE
from netserver.config.console import ConsoleSection
from netserver.console.limits import CONSOLE_LOGIN_S, CONSOLE_LOGINS_MAX, CONSOLE_SESSION_S, CONSOLE_SESSIONS_MAX
from netserver.console.login import Logins
from tests.console_visitor import Visitor, key_of, visiting

pytestmark = pytest.mark.whole

IDENTITIES: Final[dict[str, dict[str, Any]]] = {
    **{role.value: {"role": role.value} for role in Role},
    **{f"only-{right}": {right.value: ["t-*"]} for right in Right},
    "nothing": {},
}
FORMS: Final[dict[str, dict[str, str]]] = {
    "POST topics": {"name": "t-2"},
    "POST topics/TOPIC/trim": {"partition": "0", "before": "1"},
}


def token_of(visitor: Visitor) -> str:
    return (visitor.server.data_dir / TOKEN_FILE).read_text().strip()


async def login_path(visitor: Visitor, key: str) -> str:
    """What `logtool console` asks for."""
    headers = {"Authorization": f"Bearer {key}"}
    async with visitor.http.post(f"{visitor.origin}/v1/console/logins", headers=headers) as answer:
        assert answer.status == 201, await answer.text()
        return str(json.loads(await answer.text())["path"])


def test_every_page_is_open_to_those_who_may_and_to_nobody_else(tmp_path: Path) -> None:
    async def try_all(visitor: Visitor, who: str) -> None:
        roles = [role.value for role in Role]
        visitor.http.cookie_jar.clear()
        await visitor.post("/console/login", key=key_of(who))
        await visitor.get("/console/", 200 if who in roles else 403)
        for route in PAGES:
            path = "/console/" + "/".join({"TOPIC": "t-1", "NAME": "g"}.get(part, part) for part in route.path)
            url, fields = f"{visitor.origin}{path}", FORMS.get(f"{route.method} {'/'.join(route.path)}", {})
            form = {"form_token": visitor.form_token, **fields} if route.method == "POST" else None
            async with visitor.http.request(route.method, url, data=form, allow_redirects=False) as answer:
                text = await answer.text()
            may = who in roles and roles.index(who) >= roles.index(route.role)
            may = may or (route.right is not None and who == f"only-{route.right}")
            assert (answer.status != 403) == may, (route, who, answer.status, text)
            assert answer.status != 500
            assert "There is no such page" not in text

    async def test() -> None:
        async with visiting(identities=IDENTITIES, directory=tmp_path) as visitor:
            visitor.server.log.catalog.create(b"t-1")
            await visitor.api("POST", "/v1/groups", {"name": "g", "topic": "t-1"})
            for who in IDENTITIES:
                await try_all(visitor, who)

    asyncio.run(test())


def test_nobody_sees_a_page_or_changes_anything() -> None:
    async def test() -> None:
        async with visiting() as visitor:
            for route in PAGES:
                path = "/console/" + "/".join(route.path)
                if route.method == "GET":
                    where = await visitor.get(path, 303)
                    assert where.startswith("/console/login?next=%2Fconsole%2F")
                else:
                    assert "not logged in" in await visitor.post(path, 403)
            assert "Log in" in await visitor.get("/console/login?next=//evil.example/")
            assert "evil" not in await visitor.get("/console/login?next=//evil.example/")
            where = await visitor.post("/console/login", key=token_of(visitor), next="/console/\r\nSet-Cookie: x=y")
            assert where == "/console/"
            visitor.http.cookie_jar.clear()
            assert "no key that counts" in await visitor.post("/console/login", 403, key="wrong")
            await visitor.post("/console/login", key=token_of(visitor), next="/console/topics")
            assert visitor.form_token == ""
            await visitor.post("/console/topics", 403, name="x")
            await visitor.post("/console/logout", 403)
            page = await visitor.get("/console/topics")
            assert "x" not in [topic.name.decode() for topic in visitor.server.log.catalog]
            assert "Log out" in page
            assert await visitor.post("/console/logout") == "/console/login"
            await visitor.get("/console/topics", 303)

    asyncio.run(test())


def test_a_login_address_counts_once() -> None:
    async def test() -> None:
        async with visiting() as visitor:
            path = await login_path(visitor, token_of(visitor))
            async with visitor.http.head(visitor.origin + path) as answer:  # what looks at links does not use it up
                assert answer.status == 404
            assert await visitor.get(path, 303) == "/console/"
            cookie = next(iter(visitor.http.cookie_jar))
            assert cookie["httponly"]
            assert cookie["samesite"] == "Strict"
            assert cookie["path"] == "/console/"
            await visitor.get("/console/")
            visitor.http.cookie_jar.clear()
            assert "was used, or is too old" in await visitor.get(path)
            await visitor.get("/console/", 303)

    asyncio.run(test())


def test_codes_and_sessions_end_and_are_bounded() -> None:
    async def test() -> None:
        now = 0.0
        async with visiting() as visitor:
            operator = Known(OPERATOR, "127.0.0.1:1", ())
            logins = Logins(visitor.server.access, lambda: now)
            code, cookie = logins.make_code(operator), logins.begin(operator)
            now = CONSOLE_LOGIN_S
            assert logins.use_code(code) is None
            assert logins.session(cookie) is not None
            now = CONSOLE_SESSION_S
            assert logins.session(cookie) is None
            codes = [logins.make_code(operator) for _ in range(CONSOLE_LOGINS_MAX + 1)]
            assert logins.use_code(codes[0]) is None
            assert logins.use_code(codes[1]) is operator
            cookies = [logins.begin(operator) for _ in range(CONSOLE_SESSIONS_MAX + 1)]
            assert logins.session(cookies[0]) is None
            assert logins.session(cookies[1]) is not None

    asyncio.run(test())


def test_rights_that_are_taken_back_count_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with visiting(identities=IDENTITIES, directory=tmp_path) as visitor:
            await visitor.log_in(key_of("viewer"))
            identities = visitor.server.access.identities
            path = tmp_path / "access"
            path.write_text("".join(line for line in path.read_text().splitlines(True) if '"viewer"' not in line))
            identities.replace(identities.read_again())
            await visitor.get("/console/", 303)

    asyncio.run(test())


def test_forms_and_sockets_of_other_sites_are_refused() -> None:
    async def test() -> None:
        async with visiting() as visitor:
            await visitor.log_in(token_of(visitor))
            visitor.server.log.catalog.create(b"t")
            good = visitor.form_token
            for headers in ({"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}):
                assert "another server" in await visitor.post("/console/topics", 403, headers=headers, name="x")
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await visitor.http.ws_connect(f"{visitor.origin}/console/topics/t/live", headers=headers)
                assert refused.value.status == 403
            visitor.form_token = "another session's"
            assert "another login" in await visitor.post("/console/topics", 403, name="x")
            visitor.form_token = good
            await visitor.post("/console/topics", headers={"Origin": visitor.origin}, name="x")
            async with visitor.http.post(f"{visitor.origin}/console/topics", json={"name": "y"}) as answer:
                assert answer.status == 415
            assert "65536" in await visitor.post("/console/topics", 413, name="y" * 70_000)
            await visitor.post("/console/topics", 413, **{f"f{number}": "1" for number in range(300)})
            async with visitor.http.put(f"{visitor.origin}/console/topics") as answer:
                assert answer.status == 405

    asyncio.run(test())


def test_it_shows_only_or_without_payloads() -> None:
    async def test() -> None:
        async with visiting({"console": {"mode": "read-only", "payloads": False}}) as visitor:
            await visitor.log_in(token_of(visitor))
            visitor.server.log.catalog.create(b"t")
            page = await visitor.get("/console/topics/t")
            assert "Delete the topic" not in page
            assert "/records" not in page
            for path in ("records", "records/0/1", "records/0/1/value", "download", "live"):
                assert "payloads is off" in await visitor.get(f"/console/topics/t/{path}", 403)
            assert "shows only" in await visitor.post("/console/topics/t/delete", 403, typed="t")
            assert visitor.server.log.catalog.get(b"t") is not None

    asyncio.run(test())


def test_it_is_off() -> None:
    async def test() -> None:
        async with visiting({"console": {"mode": "off"}}) as visitor:
            for path in ("/", "/console", "/console/", "/console/login", "/console/static/console.css"):
                await visitor.get(path, 404)
            headers = {"Authorization": f"Bearer {token_of(visitor)}"}
            async with visitor.http.post(f"{visitor.origin}/v1/console/logins", headers=headers) as answer:
                assert answer.status == 409

    asyncio.run(test())


def test_behind_a_path() -> None:
    """A proxy may leave its path before ours, or take it away; addresses in pages have it."""

    async def test() -> None:
        async with visiting({"console": {"base_path": "/logs/"}}) as visitor:
            path = await login_path(visitor, token_of(visitor))
            assert path.startswith("/logs/console/login/")
            assert await visitor.get(path, 303) == "/logs/console/"
            page = await visitor.get("/logs/console/")
            assert 'href="/logs/console/topics"' in page
            assert '"/console/' not in page
            assert await visitor.get("/console/topics", 303) != ""
            cookie = "; ".join(f"{one.key}={one.value}" for one in visitor.http.cookie_jar)
            assert 'href="/logs/console/topics"' in await visitor.get("/console/topics", Cookie=cookie)
            where = await visitor.post("/logs/console/topics", name="t")
            assert where == "/logs/console/topics/t?told=1"
            assert await visitor.get("/logs/", 303) == "/logs/console/"

    asyncio.run(test())


@pytest.mark.parametrize("path", ["", "logs", "/logs", "//", "/../", "/a b/", "/a/../b/", '/"><x/'])
def test_a_base_path_that_is_none(path: str) -> None:
    (problem,) = ConsoleSection(base_path=path).problems()
    assert "begins and ends" in problem


def test_static_files_are_kept_by_browsers() -> None:
    async def test() -> None:
        async with visiting() as visitor:
            page = await visitor.get("/console/login")
            at = page.index("/console/static/console.css?")
            async with visitor.http.get(visitor.origin + page[at : page.index('"', at)]) as answer:
                assert answer.content_type == "text/css"
                assert "immutable" in answer.headers["Cache-Control"]
            for name in ("live.js", "refresh.js"):
                async with visitor.http.get(f"{visitor.origin}/console/static/{name}") as answer:
                    assert answer.content_type == "text/javascript"
                    assert answer.headers["Cache-Control"] == "no-store"
            await visitor.get("/console/static/console.py", 404)
            await visitor.get("/console/static/%2e%2e", 404)

    asyncio.run(test())

"""The console's pages: what they show, that nothing in a record or name acts on them, what operators change."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from engine.config import TopicConfig
from engine.limits import LAG_SAMPLE_MS
from netserver.access.table import PAGES
from netserver.admin.names import TOKEN_FILE
from netserver.console.formatting import part_of_path, retention_text
from tests.console_visitor import Visitor, visiting
from tests.echo import run, until

pytestmark = pytest.mark.whole

HOSTILE = (
    b"<b>bold</b>",
    b'"><script>alert(1)</script>',
    b"'onmouseover='alert(1)",
    b"{{ 7 * 7 }}",
    b"\xff\xfe\x00",
    b"..",
    b".",
    b"\\..",
    b"a/b?c#d%2e",
    "\u202egnp.exe".encode(),
    b"line\nend",
)


def visit(test: Callable[[Visitor], Awaitable[None]], settings: dict[str, dict[str, Any]] | None = None) -> None:
    async def main() -> None:
        async with visiting(settings) as visitor:
            await visitor.log_in((visitor.server.data_dir / TOKEN_FILE).read_text().strip())
            await test(visitor)

    run("uvloop", main())


async def publish(visitor: Visitor, topic: bytes, values: list[bytes], partition: int = 0, **options: Any) -> None:
    """Appends records and waits until they are stored."""
    log = visitor.server.log
    stored = log.partition(log.catalog.get_or_create(topic), partition)
    opened = asyncio.Event()
    stored.when_open(opened.set)
    await opened.wait()
    committed = asyncio.Event()

    class Waiter:
        def round_done(self) -> None:
            committed.set()

    stored.append_many(values, waiter=Waiter(), **options)
    last = stored.last_seq
    while stored.committed_seq < last:
        await committed.wait()
        committed.clear()


def test_every_page_has_a_view() -> None:
    async def test(visitor: Visitor) -> None:
        assert visitor.server.admin is not None
        assert set(visitor.server.admin.console.views) == {f"{one.method} {'/'.join(one.path)}" for one in PAGES}

    visit(test)


def test_an_empty_server() -> None:
    async def test(visitor: Visitor) -> None:
        assert await visitor.get("/", 303) == "/console/"
        assert await visitor.get("/console", 303) == "/console/"
        page = await visitor.get("/console/")
        assert "is synced to disk (fdatasync)" in page
        assert "Nothing is wrong" in page
        assert "There are no topics yet" in await visitor.get("/console/topics")
        assert "There are no groups" in await visitor.get("/console/groups")
        assert "There are no sessions" in await visitor.get("/console/sessions")
        assert "Nobody is connected" in await visitor.get("/console/connections")
        assert str(visitor.server.data_dir) in await visitor.get("/console/storage")
        await visitor.get("/console/nothing", 404)
        assert "unknown topic" not in await visitor.get("/console/topics/none", 404)

    visit(test)


def test_a_topic_tells_how_long_its_records_are_kept() -> None:
    assert retention_text(TopicConfig()) == "no limit"
    bounded = TopicConfig(retention_ms=86_400_000, retention_bytes=1 << 30, retention_records=5)
    assert retention_text(bounded) == "1d, 1GiB a partition, 5 records a partition"


def test_settings_tell_where_they_come_from() -> None:
    async def test(visitor: Visitor) -> None:
        page = await visitor.get("/console/settings")
        assert re.search(r">record_bytes_max<.*?>default<", page, re.DOTALL)
        made = await visitor.get("/console/settings?made=1")
        assert re.search(r">retention</td><td[^>]*>2d</td><td>test</td>", made)
        assert "record_bytes_max" not in made

    visit(test, {"topics": {"retention_ms": "2d"}})


def test_no_name_key_or_value_acts_on_a_page() -> None:
    async def try_one(visitor: Visitor, hostile: bytes) -> None:
        await publish(visitor, hostile, [hostile], keys=[hostile], headers=[(hostile, hostile)])
        part = part_of_path(hostile)
        path = f"/console/topics/{part}"
        records = (f"{path}/records", f"{path}/records?view=hex", f"{path}/records?view=json", f"{path}/records/0/1")
        for one in ("/console/topics", path, f"/console/storage/{part}", "/console/storage", *records):
            page = await visitor.get(one)
            assert "<script>" not in page
            assert "\x00" not in page
            assert "\u202e" not in page
            assert "49" not in re.findall(r"<bdi[^>]*>([^<]*)</bdi>", page)
            assert part in page
        await visitor.get(f"/console/topics?name={quote(hostile)}")

    async def test(visitor: Visitor) -> None:
        for hostile in HOSTILE:
            await try_one(visitor, hostile)

    visit(test)


def test_numbers_are_exact_and_large_values_are_cut() -> None:
    async def test(visitor: Visitor) -> None:
        number = 2**53 + 1
        large = b"x" * (3 << 20)
        await publish(visitor, b"t", [b'{"id": %d, "more": [1.10, true]}' % number, large], timestamps_ms=[number, 5])
        page = await visitor.get("/console/topics/t/records/0/1")
        assert page.count(str(number)) > 3
        assert "1.10" in page
        for protocol in ("figg", "tank", "blipmq", "fujin", "reliably", "http"):
            assert re.search(rf"<summary>{protocol}: .* bytes</summary>", page), protocol
        listed = await visitor.get("/console/topics/t/records?view=json")
        assert len(listed) < 30_000
        assert "download all of it" in listed
        assert len(await visitor.get("/console/topics/t/records/0/2")) < 200_000
        async with visitor.http.get(f"{visitor.origin}/console/topics/t/records/0/2/value") as answer:
            assert answer.headers["Content-Disposition"] == 'attachment; filename="t-0-2.bin"'
            assert answer.content_type == "application/octet-stream"
            assert await answer.read() == large
        assert "there is no record 3" in await visitor.get("/console/topics/t/records/0/3", 404)
        async with visitor.http.get(f"{visitor.origin}/console/topics/t/download?format=jsonl&to=2") as answer:
            assert json.loads(await answer.read())["value"] == f'{{"id": {number}, "more": [1.10, true]}}'

    visit(test)


def offsets(page: str) -> list[int]:
    return [int(found) for found in re.findall(r"/records/0/(\d+)\">\d+</a></td>", page)]


def next_of(page: str, word: str) -> str:
    found = re.search(rf'<a[^>]* href="([^"]+)">{word}</a>', page)
    assert found is not None, word
    return html.unescape(found[1])


def test_records_are_found_page_by_page() -> None:
    async def test(visitor: Visitor) -> None:
        values = [b'{"n": %d}' % number for number in range(1, 501)]
        await publish(visitor, b"t", values, keys=[b"k%d" % (number % 7) for number in range(1, 501)])
        newest = await visitor.get("/console/topics/t/records?limit=10")
        assert offsets(newest) == list(range(500, 490, -1))
        older = await visitor.get(next_of(newest, "Older"))
        assert offsets(older) == list(range(481, 491))
        assert offsets(await visitor.get(next_of(older, "Newer"))) == list(range(491, 501))
        assert offsets(await visitor.get("/console/topics/t/records?key=k3&limit=200")) == list(range(3, 501, 7))
        page = await visitor.get("/console/topics/t/records?key=k3&limit=2&from=100")
        assert offsets(page) == [101, 108]
        assert offsets(await visitor.get(next_of(page, "Newer"))) == [115, 122]
        assert offsets(await visitor.get("/console/topics/t/records?where=/n=77&key=&to=")) == [77]
        assert offsets(await visitor.get("/console/topics/t/records?contains=%22n%22%3A+49&from=50")) == list(
            range(490, 500)
        )
        assert "No such records" in await visitor.get("/console/topics/t/records?from=900")
        assert "expected" in await visitor.get("/console/topics/t/records?from=nonsense", 400)

    visit(test)


def test_a_search_stops_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one page does not look through, the next one does."""
    monkeypatch.setattr("netserver.console.searching.CONSOLE_SEARCH_BYTES", 100_000)

    async def test(visitor: Visitor) -> None:
        await publish(visitor, b"t", [b"%01000d" % number for number in range(1000)])
        page = await visitor.get("/console/topics/t/records?contains=0950")
        looks = 1
        while "Go on searching" in page and not offsets(page):
            page = await visitor.get(next_of(page, "Go on searching"))
            looks += 1
        assert offsets(page) == [951]
        assert looks == 10

    visit(test)


def test_several_partitions_are_merged() -> None:
    async def test(visitor: Visitor) -> None:
        await visitor.post("/console/topics", name="wide", partitions="3")
        for number in range(30):
            await publish(visitor, b"wide", [b"value %d" % number], number % 3, timestamps_ms=[1000 + number])
        page = await visitor.get("/console/topics/wide/records?limit=5")
        assert re.findall(r"value \d+", page) == [f"value {number}" for number in range(29, 24, -1)]
        page = await visitor.get("/console/topics/wide/records?limit=5&from=earliest")
        assert re.findall(r"value \d+", page) == [f"value {number}" for number in range(5)]
        page = await visitor.get(next_of(page, "Newer"))
        assert re.findall(r"value \d+", page) == [f"value {number}" for number in range(4, 9)]
        await visitor.post("/console/topics", name="very wide", partitions="2000")
        assert 'name="partition" value="0"' in await visitor.get("/console/topics/very%20wide/records")
        page = await visitor.get("/console/topics/wide/records?partition=2&limit=2")
        assert re.findall(r"value \d+", page) == ["value 29", "value 26"]

    visit(test)


def test_ten_thousand_topics_come_in_pages() -> None:
    async def test(visitor: Visitor) -> None:
        log = visitor.server.log
        for number in range(10_000):
            log.catalog.create(b"topic-%05d" % number)
        page = await visitor.get("/console/topics")
        assert "1 to 100 of 10,000" in page
        page = await visitor.get(next_of(page, "After"))
        assert "101 to 200 of 10,000" in page
        assert "topic-00100" in page
        page = await visitor.get(next_of(page, "Before"))
        assert "1 to 100 of 10,000" in page
        assert 'rel="prev"' not in page
        page = await visitor.get("/console/topics?name=0999")
        assert "1 to 11 of 11" in page  # 00999, 09990 to 09999
        page = await visitor.get("/console/topics?name=*-0999?")
        assert "1 to 10 of 10" in page
        assert "longer" not in page
        await visitor.get("/console/topics?name=" + "*a" * 3000, 400)

    visit(test)


def test_topics_are_made_changed_trimmed_and_deleted() -> None:
    async def test(visitor: Visitor) -> None:
        where = await visitor.post("/console/topics", name="orders", partitions="2")
        assert "Made orders." in await visitor.get(where)
        assert "Made orders." not in await visitor.get(where)
        assert "exists" in await visitor.post("/console/topics", 409, name="orders", partitions="2")
        where = await visitor.post("/console/topics/orders/settings", retention="3d", durability="")
        page = await visitor.get(where)
        assert "Changed retention: default → 3d." in page
        assert "retention" in await visitor.post("/console/topics/orders/settings", 400, retention="never ever")
        await publish(visitor, b"orders", [b"x"] * 10)
        where = await visitor.post("/console/topics/orders/trim", partition="0", before="4")
        assert "Partition 0 begins with 4 now." in await visitor.get(where)
        assert "another one" in await visitor.post("/console/topics/orders/delete", 400, typed="order")
        where = await visitor.post("/console/topics/orders/delete", typed="orders")
        assert "Deleted orders." in await visitor.get(where)
        assert visitor.server.log.catalog.get(b"orders") is None

    visit(test)


def test_segments_are_bars() -> None:
    async def test(visitor: Visitor) -> None:
        for _ in range(3):
            await publish(visitor, b"t", [b"x" * 60_000] * 2)
        page = await visitor.get("/console/storage/t")
        assert page.count('<rect class="sealed"') >= 1
        assert page.count('<rect class="active"') == 1
        assert 'width="300.0"' in page

    visit(test, {"topics": {"segment_bytes": "64KiB"}})


def test_live_records() -> None:
    """The newest are told, numbers as texts, and nothing more until the page has shown them."""

    async def test(visitor: Visitor) -> None:
        await publish(visitor, b"t", [b"before"])
        async with visitor.http.ws_connect(f"{visitor.origin}/console/topics/t/live") as socket:
            await publish(visitor, b"t", [b"<i>%d</i>" % number for number in range(1000)])
            message = await socket.receive_json(timeout=20)
            rows = message["rows"]
            while rows[-1]["offset"] != "1001":  # a round may have brought a part of them
                await socket.send_str("shown")
                message = await socket.receive_json(timeout=20)
                rows = message["rows"]
            assert len(rows) <= 50
            assert rows[-1]["value"] == "<i>999</i>"
            assert rows[-1]["href"] == "/console/topics/t/records/0/1001"
            await publish(visitor, b"t", [b"while it is paused"] * 500)
            await publish(visitor, b"t", [b"later"])
            await socket.send_str("shown")
            message = await socket.receive_json(timeout=20)
            assert message["new"] == "501"
            assert message["passed"] == "451"
            assert message["rows"][-1]["value"] == "later"
        assert "WebSocket" in await visitor.get("/console/topics/t/live", 400)
        assert "no WebSocket" in await visitor.get("/console/topics/t/live", 400, Upgrade="websocket")

    visit(test)


def test_connections_are_listed_and_closed() -> None:
    async def test() -> None:
        async with visiting({"figg": {"listen": "127.0.0.1:0"}}) as visitor:
            await visitor.log_in((visitor.server.data_dir / TOKEN_FILE).read_text().strip())
            where = visitor.server.addresses["figg"]
            reader, writer = await asyncio.open_connection(where.host, where.port)
            peer = "{}:{}".format(*writer.get_extra_info("sockname"))
            page = await visitor.get("/console/connections")
            while peer not in page:
                page = await visitor.get("/console/connections")
            assert "None of these" in await visitor.get("/console/connections?text=tank")
            found = re.search(r"/console/connections/(\d+)/close", page)
            assert found is not None
            await visitor.post(found[0])
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            assert peer not in await visitor.get("/console/connections?text=figg")
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    asyncio.run(test())


async def lag_is_noted(visitor: Visitor) -> None:
    """Twice, as if ten seconds had passed; it may have been before, by the server itself."""
    lags = visitor.server.log.cursors.lags
    (key,) = visitor.server.log.cursors.ids()
    for number in range(2):
        before = len(lags.history([key]))
        lags.tick(10**15 + number * LAG_SAMPLE_MS)
        await until(lambda seen=before: len(lags.history([key])) > seen, 60)  # type: ignore[misc]


def test_groups_are_shown_reset_and_removed() -> None:
    async def test(visitor: Visitor) -> None:
        await publish(visitor, b"<i>t</i>", [b"x"] * 10)
        await visitor.api("POST", "/v1/groups", {"name": "<b>g</b>", "topic": "<i>t</i>", "from": 4})
        page = await visitor.get("/console/groups")
        assert "&lt;b&gt;g&lt;/b&gt;" in page
        assert re.search(r'<td class="number">1</td><td class="number">7</td>', page), "7 of 10 records wait"
        assert "None of these" in await visitor.get("/console/groups?text=other")
        where = next_of(page, "<bdi>&lt;b&gt;g&lt;/b&gt;</bdi>")
        assert ">4</a>" in await visitor.get(where)
        at, _, query = where.partition("?")
        await lag_is_noted(visitor)
        chart = r"Lag in records over \d+ s: 7 at first, 7 now, at most 7 \(0 µs ago\), at least 7"
        for page in (await visitor.get(where), await visitor.get("/console/groups")):
            assert re.search(f'role="img" aria-label="{chart}"', page)
            assert '<polyline class="s0" points="' in page
        assert re.search(f"<figcaption>{chart}</figcaption>", await visitor.get(where))
        assert "<dt>Paused</dt><dd>no</dd>" in await visitor.get(where)
        await visitor.api("POST", "/v1/groups/%3Cb%3Eg%3C%2Fb%3E/pause")
        assert "<dt>Paused</dt><dd>yes</dd>" in await visitor.get(where)
        assert "<td>yes</td>" in await visitor.get("/console/groups")
        assert f'href="{at}?protocol=' in await visitor.get(f"/console/topics/{part_of_path(b'<i>t</i>')}")
        page = await visitor.post(f"{at}/reset?{query}", 200, position="earliest")
        assert "3 records that were delivered come again" in page
        assert "Reset: 3 records come again" in await visitor.get(
            await visitor.post(f"{at}/reset?{query}", position="earliest", sure="yes")
        )
        assert "expected" in await visitor.post(f"{at}/reset?{query}", 400, position="nonsense")
        assert "another one" in await visitor.post(f"{at}/delete?{query}", 400, typed="g")
        assert "Removed" in await visitor.get(await visitor.post(f"{at}/delete?{query}", typed="<b>g</b>"))
        assert "There are no groups" in await visitor.get("/console/groups")

    visit(test)

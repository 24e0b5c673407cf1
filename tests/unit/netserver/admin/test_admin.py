"""Admin HTTP: who may call it, what it tells, what it changes."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from engine.commit.target import CommitTarget
from engine.commit.transactions import Transaction
from engine.config import TopicConfig
from engine.errors import DiskFull, NotStored, ReadOnly
from engine.files.system import Buffer, SystemFiles
from engine.formats.batch import records as batch_records
from netserver.admin import api as admin_api
from netserver.admin.names import TOKEN_FILE
from netserver.admin.server import read_token
from netserver.app import Server
from netserver.errors import ListenError, ServerError
from netserver.http.limits import HTTP_RECORDS_PIECE
from netserver.testing import running
from tests.api_schemas import check_answer
from tests.echo import ALONE, Echo, frame, run, until

pytestmark = pytest.mark.whole


class Caller:
    """Calls the admin API of a running server."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.base = f"http://{server.admin_address}"
        self.token = (server.data_dir / TOKEN_FILE).read_text().strip()

    async def __call__(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """(status, document or text)."""
        if headers is None:
            headers = {"Authorization": f"Bearer {self.token}"}
        data = None if body is None else io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        url = aiohttp.client.URL(self.base + path, encoded=True)
        async with self.http.request(method, url, data=data, headers=headers) as answer:
            check_answer(method, path, answer.status, answer.content_type, await answer.read())
            if answer.content_type in ("application/json", "application/problem+json"):
                return answer.status, await answer.json()
            return answer.status, await answer.text()

    async def error(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """(status, code) of an error."""
        status, document = await self(method, path, body)
        assert document["detail"]
        return status, document["code"]


def with_admin(
    test: Callable[[Caller], Awaitable[None]],
    settings: dict[str, dict[str, Any]] | None = None,
    data_dir: Path | None = None,
    echo: Echo | None = None,
) -> None:
    async def main() -> None:
        async with (
            running(data_dir, {**ALONE, **(settings or {})}, {"echo": echo or Echo()}) as server,
            aiohttp.ClientSession() as http,
        ):
            await test(Caller(server, http))

    run("uvloop", main())


def test_public_pages() -> None:
    async def test(call: Caller) -> None:
        nobody: dict[str, str] = {}
        assert await call("GET", "/healthz", headers=nobody) == (200, "ok\n")
        assert await call("GET", "/readyz", headers=nobody) == (200, "ready\n")
        status, text = await call("GET", "/metrics", headers=nobody)
        assert status == 200
        assert "quintlog_ready 1.0" in text
        assert (await call("POST", "/healthz", headers=nobody))[0] == 405
        assert (await call("GET", "/nothing", headers=nobody))[0] == 404
        call.server.log.partitions.stop_writing(ReadOnly("another primary"))
        assert await call("GET", "/readyz", headers=nobody) == (503, "it takes no records: another primary\n")
        call.server.ready = False
        assert await call("GET", "/readyz", headers=nobody) == (503, "starting or stopping\n")

    with_admin(test)


def test_the_api_needs_the_token() -> None:
    async def test(call: Caller) -> None:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer ÿ"},
        ):
            status, document = await call("GET", "/v1/status", headers=headers)
            assert status == 401
            assert TOKEN_FILE in document["detail"]
        assert (await call("GET", "/v1/status"))[0] == 200

    with_admin(test)


def test_token_file(tmp_path: Path) -> None:
    token = read_token(tmp_path)
    path = tmp_path / TOKEN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 40
    assert read_token(tmp_path) == token
    path.write_text("\n")
    assert read_token(tmp_path) not in ("", token)
    path.write_bytes(b"\xff\xff")
    with pytest.raises(ServerError, match="remove it"):
        read_token(tmp_path)
    with pytest.raises(ServerError, match="cannot make"):
        read_token(tmp_path / "gone")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:9180", True),
        ("localhost:9180", True),
        ("LOCALHOST", True),
        ("[::1]:9180", True),
        ("[::1]", True),
        ("192.0.2.1", True),
        ("logs.example:9180", True),
        ("evil.example", False),
        ("evil.example:9180", False),
        ("localhost.evil.example", False),
        ("localhost:80@evil.example", False),
        ("evil.example@localhost", False),
        ("localhost:", False),
        ("localhost:80:80", False),
        ("[localhost]", False),
        ("[::1", False),
        ("localhost\r\nHost: evil.example", False),
        ("", False),
    ],
)
def test_names_that_are_not_ours_are_refused(host: str, allowed: bool) -> None:
    async def test(call: Caller) -> None:
        address = call.server.admin_address
        assert address is not None
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read(-1)
        assert answer.split()[1] in ((b"200",) if allowed else (b"421", b"400"))
        writer.close()

    with_admin(test, {"admin": {"hosts": ["logs.example"]}})


def test_topics_are_made_listed_changed_and_deleted() -> None:
    async def test(call: Caller) -> None:
        assert await call("GET", "/v1/topics") == (200, {"schema": 1, "items": []})
        body = {"name": "orders", "partitions": 3, "config": {"retention": "7d", "segment_bytes": 1 << 20}}
        status, made = await call("POST", "/v1/topics", body)
        assert status == 201
        assert made["name"] == "orders"
        assert made["partitions"] == 3
        assert made["settings"] == {"retention": "7d", "segment_bytes": "1MiB"}
        assert await call.error("POST", "/v1/topics", body) == (409, "topic_exists")
        status, changed = await call("PATCH", "/v1/topics/orders", {"config": {"retention": "default"}})
        assert status == 200
        assert changed["settings"] == {"segment_bytes": "1MiB"}
        assert changed["config"]["retention"] == "0"
        assert await call.error("PATCH", "/v1/topics/orders", {"config": {"retention": 1}}) == (400, "invalid_config")
        assert (await call("GET", "/v1/topics/orders"))[1] == changed
        assert await call("DELETE", "/v1/topics/orders") == (200, {"deleted": {"name": "orders"}})
        assert await call.error("GET", "/v1/topics/orders") == (404, "unknown_topic")
        assert await call.error("DELETE", "/v1/topics/orders") == (404, "unknown_topic")
        assert await call.error("POST", "/v1/topics", {"name": "x" * 70_000}) == (400, "invalid_config")
        assert await call.error("POST", "/v1/topics", {"name": "x", "partitions": 0}) == (400, "invalid_config")

    with_admin(test)


@pytest.mark.parametrize("name", [b"a/b", b"..", b".", b"\xff\x00", "größe".encode(), b"a b?c#d%", b"x" * 255])
def test_topic_names_are_any_bytes(name: bytes) -> None:
    path = f"/v1/topics/{quote(name, safe='')}".replace("/.", "/%2E")

    async def test(call: Caller) -> None:
        status, stored = await call("POST", f"{path}/records", {"records": [{"value": "one"}]})
        assert (status, stored) == (200, {"partition": 0, "first_offset": 1, "last_offset": 1})
        assert [topic.name for topic in call.server.log.catalog] == [name]
        assert (await call("GET", path))[0] == 200
        _, document = await call("GET", "/v1/topics")
        assert len(document["items"]) == 1

    with_admin(test)


def test_a_document_of_many_records_is_taken_in_slices_and_stored_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    count = HTTP_RECORDS_PIECE + 1
    taken = 0
    append = Transaction.append

    def watched(self: Transaction, partition: CommitTarget, value: bytes, **more: Any) -> None:
        nonlocal taken
        taken += 1
        append(self, partition, value, **more)

    monkeypatch.setattr(Transaction, "append", watched)

    async def test(call: Caller) -> None:
        log = call.server.log
        partition = log.partition(log.catalog.get_or_create(b"many"))
        most = 0

        async def watch() -> None:
            nonlocal most
            before = 0
            while partition.committed_seq < count:
                await asyncio.sleep(0)
                most = max(most, taken - before)
                before = taken
                assert partition.committed_seq in (0, count), "a part of it is visible"

        watching = asyncio.ensure_future(watch())
        records = [{"value": f"{number}", "headers": [{"name": "n", "value": "v"}]} for number in range(count)]
        answer = await call("POST", "/v1/topics/many/records", {"records": records, "qos0": True})
        assert answer == (200, {"partition": 0, "first_offset": 1, "last_offset": count})
        await watching
        assert taken == count
        assert most <= 2
        too_large = {"value": "x" * ((16 << 20) + 1)}
        status, _ = await call("POST", "/v1/topics/many/records", {"records": [*records, too_large]})
        assert (status, partition.last_seq) == (413, count), "none, if one of them is refused"
        read_batch = partition.read(1, 1 << 20, None)
        assert read_batch is not None
        found = list(batch_records(read_batch.buffer, 0, len(read_batch.buffer), 1))
        assert [record.value for record in found] == [b"%d" % number for number in range(count)]
        assert all(record.qos0 for record in found)

    with_admin(test)


def test_publishing_tells_offsets_and_survives_a_restart(tmp_path: Path) -> None:
    async def first(call: Caller) -> None:
        records = [
            {"value": "one", "key": "k", "timestamp_ms": 1},
            {"value_base64": "/w==", "headers": [{"name": "h", "value_base64": "AA=="}]},
        ]
        answer = await call("POST", "/v1/topics/orders/records", {"records": records})
        assert answer == (200, {"partition": 0, "first_offset": 1, "last_offset": 2})
        answer = await call("POST", "/v1/topics/orders/records", {"records": [{"value": ""}]})
        assert answer == (200, {"partition": 0, "first_offset": 3, "last_offset": 3})
        _, text = await call("GET", "/metrics")
        assert 'quintlog_records_published_total{protocol="http"} 3.0' in text
        assert 'quintlog_published_bytes_total{protocol="http"} 4.0' in text

    async def second(call: Caller) -> None:
        _, topic = await call("GET", "/v1/topics/orders")
        (partition,) = topic["partition_details"]
        assert (partition["first_offset"], partition["next_offset"]) == (1, 4)
        _, trimmed = await call("POST", "/v1/topics/orders/trim", {"before": 3})
        assert trimmed["first_offset"] == 3
        _, topic = await call("GET", "/v1/topics/orders")
        assert topic["partition_details"][0]["first_offset"] == 3

    with_admin(first, data_dir=tmp_path)
    with_admin(second, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("records", {}, (400, "bad_request")),
        ("records", {"records": []}, (400, "bad_request")),
        ("records", {"records": ["x"]}, (400, "bad_request")),
        ("records", {"records": [{}]}, (400, "bad_request")),
        ("records", {"records": [{"value": 1}]}, (400, "bad_request")),
        ("records", {"records": [{"value": "a", "value_base64": "YQ=="}]}, (400, "bad_request")),
        ("records", {"records": [{"value_base64": "not base64"}]}, (400, "bad_request")),
        ("records", {"records": [{"value_base64": 5}]}, (400, "bad_request")),
        ("records", b'{"records": [{"value": "\\ud800"}]}', (400, "bad_request")),
        ("records", {"records": [{"value": "a", "key": "k" * 256}]}, (400, "bad_request")),
        ("records", {"records": [{"value": "a", "timestamp_ms": -1}]}, (400, "bad_request")),
        ("records", {"records": [{"value": "a", "timestamp_ms": True}]}, (400, "bad_request")),
        ("records", {"records": [{"value": "a", "headers": {}}]}, (400, "bad_request")),
        ("records", {"records": [{"value": "a", "headers": [{"name": "x"}]}]}, (400, "bad_request")),
        ("records", {"partition": 1, "records": [{"value": "a"}]}, (404, "unknown_partition")),
        ("records", b"{", (400, "bad_request")),
        ("records", b"[1]", (400, "bad_request")),
        ("records", b"[" * 100_000, (400, "bad_request")),
        ("trim", {}, (400, "bad_request")),
        ("trim", {"before": "now"}, (400, "bad_request")),
    ],
)
def test_bad_requests(path: str, body: Any, expected: tuple[int, str]) -> None:
    async def test(call: Caller) -> None:
        await call("POST", "/v1/topics", {"name": "orders"})
        assert await call.error("POST", f"/v1/topics/orders/{path}", body) == expected

    with_admin(test)


def test_a_publish_to_a_partition_that_is_not_there_makes_no_topic() -> None:
    async def test(call: Caller) -> None:
        body = {"records": [{"value": "a"}], "partition": 3}
        assert await call.error("POST", "/v1/topics/new/records", body) == (404, "unknown_topic")
        assert (await call("GET", "/v1/topics"))[1]["items"] == []
        assert (await call("POST", "/v1/topics/new/records", {**body, "partition": 0}))[0] == 200
        assert await call.error("POST", "/v1/topics/new/records", body) == (404, "unknown_partition")

    with_admin(test)


def test_looking_at_all_topics_makes_no_objects_and_lets_others_go_on(tmp_path: Path) -> None:
    async def make(call: Caller) -> None:
        for number in range(60):
            assert (await call("POST", f"/v1/topics/t{number}/records", {"records": [{"value": "abc"}]}))[0] == 200

    async def look(call: Caller) -> None:
        log = call.server.log
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        log.slices.is_over = lambda: True  # type: ignore[method-assign]  (every item in a turn of its own)
        loop = asyncio.get_running_loop()
        for path in ("/v1/topics", "/metrics", "/metrics/topics"):
            loop.call_soon(count)
            turns = 0
            status, _ = await call("GET", path)
            assert status == 200
            assert turns >= 60 or path == "/metrics/topics"  # which tells of partitions in use
        assert log.known_count == 0
        assert "quintlog_partitions 60.0" in (await call("GET", "/metrics"))[1]
        items = (await call("GET", "/v1/topics"))[1]["items"]
        assert [item["name"] for item in items] == sorted(f"t{number}" for number in range(60))
        assert {item["partition_details"][0]["next_offset"] for item in items} == {2}
        assert all(item["partition_details"][0]["size_bytes"] > 0 for item in items)

    with_admin(make, data_dir=tmp_path)
    with_admin(look, data_dir=tmp_path)


def test_topics_that_nobody_wrote_to_are_described_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(call: Caller) -> None:
        log = call.server.log
        for number in range(60):
            log.catalog.create(b"t%d" % number)
        turns: list[int] = []
        to_mapping = TopicConfig.to_mapping

        def counted(config: TopicConfig) -> dict[str, str]:
            turns.append(log.slices.turn_of())
            return to_mapping(config)

        monkeypatch.setattr(TopicConfig, "to_mapping", counted)
        log.slices.is_over = lambda: True  # type: ignore[method-assign]  (every item in a turn of its own)
        assert (await call("GET", "/v1/topics"))[0] == 200
        assert len(turns) == 60
        assert len(set(turns)) == 60

    with_admin(test)


def test_a_partition_that_cannot_be_opened_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def make(call: Caller) -> None:
        for name in ("good", "bad"):
            assert (await call("POST", f"/v1/topics/{name}/records", {"records": [{"value": "abc"}]}))[0] == 200

    async def look(call: Caller) -> None:
        assert await call("GET", "/readyz") == (200, "ready\n")
        for _ in range(3):
            assert (await call("GET", "/v1/topics/bad"))[0] >= 500
        status, text = await call("GET", "/readyz")
        assert status == 200
        assert text.startswith("ready, but 1 of its partitions cannot be opened; topic 'bad' partition 0: ")
        assert caplog.text.count("topic 'bad' partition 0 cannot be opened: ") == 1
        partition.unlink()
        moved.rename(partition)
        assert (await call("GET", "/v1/topics/bad"))[0] == 200
        assert await call("GET", "/readyz") == (200, "ready\n")

    with_admin(make, data_dir=tmp_path)
    partition, moved = tmp_path / "topics" / "2" / "0", tmp_path / "moved"
    partition.rename(moved)
    partition.write_bytes(b"no directory")
    with_admin(look, data_dir=tmp_path)


def test_bad_topics_and_paths() -> None:
    async def test(call: Caller) -> None:
        assert await call.error("POST", "/v1/topics", {}) == (400, "bad_request")
        assert await call.error("POST", "/v1/topics", {"name": "a", "config": []}) == (400, "bad_request")
        assert await call.error("POST", "/v1/topics", {"name": "a", "config": {"durability": None}}) == (
            400,
            "bad_request",
        )
        assert await call.error("GET", "/v1/nothing") == (404, "not_found")
        assert await call.error("PUT", "/v1/topics") == (405, "method")
        assert await call.error("PUT", "/v1/nothing") == (404, "not_found")
        assert await call.error("PUT", "/healthz") == (405, "method")
        for path, allowed in (("topics", "GET, POST"), ("topics/a", "DELETE, GET, PATCH"), ("groups/a/reset", "POST")):
            async with call.http.put(
                f"{call.base}/v1/{path}", headers={"Authorization": f"Bearer {call.token}"}
            ) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, allowed)
        assert await call.error("POST", "/v1/topics/none/trim", {"before": 1}) == (404, "unknown_topic")

    with_admin(test)


def test_auto_create_off() -> None:
    async def test(call: Caller) -> None:
        answer = await call.error("POST", "/v1/topics/orders/records", {"records": [{"value": "a"}]})
        assert answer == (404, "unknown_topic")

    with_admin(test, {"topics": {"auto_create": False}})


def test_too_large() -> None:
    async def test(call: Caller) -> None:
        body = {"records": [{"value": "x" * 2000}]}
        assert await call.error("POST", "/v1/topics/orders/records", body) == (413, "too_large")
        assert await call.error("POST", "/v1/topics/orders/records", b" " * (33 << 20)) == (413, "too_large")

    with_admin(test, {"topics": {"record_bytes_max": 1000}})


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (DiskFull("no space"), (507, "disk_full")),
        (NotStored("no"), (503, "not_stored")),
        (RuntimeError("a defect"), (500, "internal")),
    ],
)
def test_errors_of_the_engine(
    problem: Exception, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(call: Caller) -> None:
        async def fail(*_args: object) -> None:
            raise problem

        monkeypatch.setattr(admin_api.Api, "publish", fail)
        assert await call.error("POST", "/v1/topics/orders/records", {}) == expected

    with_admin(test)
    assert ("a defect" in caplog.text) == (expected[0] == 500)


@pytest.mark.usefixtures("replaceable_files")
def test_a_publish_is_not_stored_unless_all_its_rounds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses the first of its rounds, and there is room for the others."""

    async def test(call: Caller) -> None:
        path = "/v1/topics/orders/records"
        assert (await call("POST", path, {"records": [{"value": "before"}]}))[0] == 200
        write, left = SystemFiles.write, [1]

        def refuse_once(self: SystemFiles, fd: int, buffers: Sequence[Buffer], position: int) -> None:
            if sum(map(len, buffers)) > 100_000 and left:
                left.pop()
                raise OSError(errno.ENOSPC, "no space left")
            write(self, fd, buffers, position)

        monkeypatch.setattr(SystemFiles, "write", refuse_once)
        body = {"records": [{"value": "x" * 400_000}] * 3}
        assert await call.error("POST", path, body) == (507, "disk_full")
        assert not left
        status, document = await call("POST", path, body)
        assert (status, document["last_offset"] - document["first_offset"]) == (200, 2)

    with_admin(test)


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    async def test(call: Caller) -> None:
        reader, writer = await request_head(call, 33 << 20)
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    with_admin(test)


def test_a_client_that_goes_away_amid_its_body_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def test(call: Caller) -> None:
        _, writer = await request_head(call, 1000)
        assert (await call("GET", "/healthz"))[0] == 200  # the head has been read by then
        writer.transport.abort()
        assert (await call("GET", "/healthz"))[0] == 200
        assert await call.error("GET", "/v1/nothing") == (404, "not_found")

    with_admin(test)
    assert "error in POST" not in caplog.text


async def request_head(call: Caller, body_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A POST of which only the head and one byte of its body are sent."""
    host, _, port = str(call.server.admin_address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/topics HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {call.token}\r\n"
    writer.write(f"{head}Content-Length: {body_bytes}\r\n\r\n{{".encode())
    await writer.drain()
    return reader, writer


def test_status_and_connections() -> None:
    echo = Echo()

    async def test(call: Caller) -> None:
        address = call.server.addresses["echo"]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(frame(b"e1") + frame(b"h"))
        await reader.readexactly(6)
        await until(lambda: echo.sessions[0].connection.held)
        _, status = await call("GET", "/v1/status")
        assert status["ready"] is True
        assert status["connections"]["echo"] == 1
        assert status["listeners"]["echo"] == str(address)
        assert status["disk_free_bytes"] > 0
        _, document = await call("GET", "/v1/connections")
        (connection,) = document["items"]
        assert connection["protocol"] == "echo"
        assert connection["bytes_in"] == 11
        assert connection["bytes_out"] == 6
        assert connection["held"] == ["test"]
        number = connection["number"]
        assert await call.error("DELETE", f"/v1/connections/{number + 1}") == (404, "not_found")
        assert await call("DELETE", f"/v1/connections/{number}") == (200, {"closed": number})
        await until(lambda: call.server.counters["echo"].closed["admin"] == 1)
        writer.close()

    with_admin(test, echo=echo)


def test_topics_by_name() -> None:
    async def test(call: Caller) -> None:
        for name in ("orders", "orders-eu", "clicks"):
            await call("POST", "/v1/topics", {"name": name})
        _, document = await call("GET", "/v1/topics?name=orders*")
        assert [topic["name"] for topic in document["items"]] == ["orders", "orders-eu"]

    with_admin(test)


def test_address_in_use() -> None:
    async def main() -> None:
        async with running(settings=ALONE) as first:
            with pytest.raises(ListenError, match="--admin HOST:PORT"):
                async with running(settings={**ALONE, "admin": {"listen": str(first.admin_address)}}):
                    pass

    run("uvloop", main())


def test_without_admin(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, {**ALONE, "admin": {"listen": "off"}}) as server:
            assert "admin" not in server.addresses
            assert json.loads((tmp_path / "server.json").read_text())["admin"] is None
        assert not (tmp_path / "server.json").exists()

    run("uvloop", main())

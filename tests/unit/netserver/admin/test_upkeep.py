"""Verifying, backups and dumps of segments over HTTP: work of a process beside the server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from netserver.admin import upkeep
from netserver.limits import UPKEEP_MAX
from netserver.testing import ServerProcess, server
from tests.access_place import key_of, place
from tests.api_schemas import check_answer
from tests.echo import until
from tests.unit.conftest import Logtool
from tools.logtool import backup
from tools.logtool.backup import backed_up
from tools.logtool.lib.errors import Failure

pytestmark = pytest.mark.whole
SMALL_SEGMENTS = {"topics": {"segment_bytes": "64KiB"}}
SEGMENT = "1/0/00000000000000000001.log"


def filled(process: ServerProcess) -> None:
    process.admin("POST", "/v1/topics", {"name": "orders"})
    for _ in range(3):
        process.admin("POST", "/v1/topics/orders/records", {"records": [{"value": "x" * 1000, "key": "k"}] * 50})


def events(process: ServerProcess, method: str, path: str, body: object = None) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {process.token}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(process.admin_url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        content, kind = answer.read(), answer.headers["Content-Type"]
    check_answer(method, path, 200, kind, content)
    found = [json.loads(line) for line in content.splitlines() if line.strip()]
    assert found[-1] == {"done": True}, found[-1]
    return [event for event in found if "progress" not in event]


def address_of(process: ServerProcess) -> list[str]:
    return ["--server", process.admin_url, "--token-file", str(process.data_dir / "admin.token")]


def test_a_backup_is_made_by_the_server_and_can_be_restored(tmp_path: Path, logtool: Logtool) -> None:
    place_of_backups = tmp_path / "backups"
    place_of_backups.mkdir()
    settings = SMALL_SEGMENTS | {"admin": {"backup_dir": str(place_of_backups)}}
    with server(tmp_path / "data", settings) as process:
        filled(process)
        code, out, err = logtool(*address_of(process), "backup", "monday", "-o", "json")
        assert (code, err) == (0, "")
        assert json.loads(out)["items"][0]["records"] == 150
        code, _, err = logtool(*address_of(process), "backup", "monday")
        assert (code, "is not empty" in err) == (6, True)
        for name in ("../outside", "", ".hidden", "a/b", "/tmp/x"):
            code, _, err = logtool(*address_of(process), "backup", name)
            assert (code, "that of a new directory" in err) == (2, True), name
    code, _, err = logtool("restore", str(place_of_backups / "monday"), str(tmp_path / "restored"))
    assert (code, err) == (0, "")
    code, out, _ = logtool("--data-dir", str(tmp_path / "restored"), "verify", "-o", "csv")
    assert (code, "orders,0,3," in out) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", "data", "restored"]


def test_what_is_wrong_is_told_by_the_status(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", SMALL_SEGMENTS) as process:
        filled(process)
        address = address_of(process)
        code, _, err = logtool(*address, "backup", "x")
        assert (code, "[admin] backup_dir says where" in err) == (6, True)
        for file in ("topics/7/0/00000000000000000001.log", "topics/1/../VERSION", "topics/1/0/VERSION"):
            code, _, err = logtool(*address, "dump", "segment", file)
            assert (code, "no " in err) == (5 if "VERSION" in file else 3, True), file
        segment = process.data_dir / "topics" / SEGMENT
        data = bytearray(segment.read_bytes())
        data[5000] ^= 1
        segment.write_bytes(data)
        found = events(process, "POST", "/v1/verify")
        (finding,) = [event["finding"] for event in found if "finding" in event]
        assert (finding["kind"], finding["file"], finding["topic"]) == ("damage", str(segment), "orders")
        assert found[0]["checked"]["findings"] == 1
        for words in (["verify"], ["dump", "segment", str(segment)], ["dump", "segment", str(segment), "--records"]):
            by_address, by_directory = logtool(*address, *words), logtool("--data-dir", str(process.data_dir), *words)
            assert by_address[:2] == by_directory[:2]
            assert sorted(by_address[2].splitlines()) == sorted(by_directory[2].splitlines())
            assert by_address[0] == 1


def test_the_records_of_a_segment_need_the_right_to_read_them(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"viewer": {"role": "viewer"}, "reader": {"role": "reader"}}
        async with place(tmp_path, identities) as here:
            here.server.log.catalog.create(b"orders")
            for who, status in (("viewer", 403), ("reader", 503)):  # nothing was stored in it
                assert (await here.http("GET", f"/v1/segments/{SEGMENT}/records", who))[0] == status

    asyncio.run(test())


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of the work a process that goes on for ever, as of a log of terabytes; the file has its number."""
    pids = tmp_path / "pids"
    script = f"echo '{{}}'; echo $$ >>{pids}; while sleep 0.05; do echo; done"
    monkeypatch.setattr(upkeep, "COMMAND", ("sh", "-c", script))
    return pids


def are_there(pids: Path) -> list[bool]:
    return [Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()]


async def all_ended(pids: Path, count: int) -> None:
    assert len(are_there(pids)) == count
    await until(lambda: not any(are_there(pids)), 20)


def test_a_request_that_ends_ends_its_process_and_only_so_many_are_served(tmp_path: Path, endless: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"admin": {"role": "operator"}}) as here:
            url = "http://{}:{}/v1/verify".format(*here.address("admin"))
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key_of('admin')}"}) as http:
                answers = [await http.post(url) for _ in range(UPKEEP_MAX)]
                assert [await answer.content.readline() for answer in answers] == [b"{}\n"] * UPKEEP_MAX
                async with http.post(url) as refused:
                    assert (refused.status, (await refused.json())["code"]) == (409, "conflict")
                for answer in answers:
                    answer.close()
            await all_ended(endless, UPKEEP_MAX)

    asyncio.run(test())


def test_a_key_that_is_taken_back_ends_the_work(tmp_path: Path, endless: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"gone": {"role": "operator"}, "admin": {"role": "operator"}}) as here:
            url = "http://{}:{}/v1/verify".format(*here.address("admin"))
            headers = {"Authorization": f"Bearer {key_of('gone')}"}
            async with aiohttp.ClientSession(headers=headers) as http, http.post(url) as answer:
                assert await answer.content.readline() == b"{}\n"
                assert (await here.http("DELETE", "/v1/keys/gone", "admin"))[0] == 200
                with pytest.raises(aiohttp.ClientError):
                    await asyncio.wait_for(answer.content.read(), 20)
            await all_ended(endless, 1)

    asyncio.run(test())


def test_a_stop_of_the_server_ends_the_work(tmp_path: Path, endless: Path) -> None:
    async def test() -> None:
        async with place(tmp_path, {"admin": {"role": "operator"}}) as here:
            url = "http://{}:{}/v1/verify".format(*here.address("admin"))
            http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key_of('admin')}"})
            answer = await http.post(url)
            assert await answer.content.readline() == b"{}\n"
        answer.close()
        await http.close()
        await all_ended(endless, 1)

    asyncio.run(test())


def test_a_backup_that_is_given_up_is_removed(tmp_path: Path) -> None:
    with server(tmp_path / "data") as process:
        filled(process)
        work = backed_up(process.data_dir, tmp_path / "out", len, leaves_room=True)
        assert next(work)["progress"]["done_bytes"] == 0
        assert (tmp_path / "out").is_dir()
        work.close()
        assert not (tmp_path / "out").exists()


def test_a_backup_leaves_room_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(tmp_path / "data") as process:
        filled(process)
        monkeypatch.setattr(backup, "BACKUP_FREE_SHARE", 1.0)
        with pytest.raises(Failure, match="too little would be left"):
            next(backed_up(process.data_dir, tmp_path / "out", len, leaves_room=True))
        assert not (tmp_path / "out").exists()

"""Segments, damage, settings and the summary over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.netserver.http.test_http_records import Records, with_records

pytestmark = pytest.mark.whole


def test_segments_of_a_topic(tmp_path: Path) -> None:
    async def test(call: Records) -> None:
        await call("POST", "/v1/topics", {"name": "t", "partitions": 2, "config": {"segment_bytes": "64KiB"}})
        assert await call("GET", "/v1/topics/t/segments") == (200, {"schema": 1, "items": []})
        for _ in range(4):
            await call.publish("t/records?partition=1&split=none", bytes(40_000))
        _, found = await call("GET", "/v1/topics/t/segments")
        files = sorted((tmp_path / "topics" / "1" / "1").glob("*.log"))
        assert [item["file"] for item in found["items"]] == [path.name for path in files]
        assert [item["state"] for item in found["items"]] == ["sealed"] * (len(files) - 1) + ["active"]
        assert sum(item["records"] for item in found["items"]) == 4
        assert found["items"][-1]["last_offset"] == 4
        assert {item["partition"] for item in found["items"]} == {1}
        assert await call.error("GET", "/v1/topics/none/segments") == (404, "unknown_topic")

    with_records(test, tmp_path)


def test_damage_settings_and_summary() -> None:
    async def test(call: Records) -> None:
        await call.publish("t/records", b'{"value":"x"}')
        status, damage = await call("GET", "/v1/damage")
        assert (status, damage["damaged_batches"], damage["read_only"]) == (200, 0, [])
        partition = next(iter(call.server.log.known_partitions()))
        call.server.log.parts.unopened["t:7"] = OSError("gone")  # type: ignore[assignment]
        call.server.log.figures.damaged_batches += 2
        partition.failing = OSError("no disk")  # type: ignore[assignment]
        _, damage = await call("GET", "/v1/damage")
        assert damage["damaged_batches"] == 2
        assert damage["unopened"] == [{"partition": "t:7", "problem": "gone"}]
        assert damage["read_only"] == [{"partition": partition.title, "problem": "no disk"}]
        status, settings = await call("GET", "/v1/settings")
        by_name = {(item["section"], item["name"]): item for item in settings["items"]}
        assert by_name["topics", "retention"]["origin"] == "default"
        assert by_name["admin", "listen"]["origin"] != "default"
        assert by_name["topics", "auto_create"]["reloadable"]
        status, summary = await call("GET", "/summary", headers={})
        assert (status, summary["topics"], summary["ready"]) == (200, 1, True)

    with_records(test)

"""`status`: the log at a glance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.address import admin_of, service
from tools.logtool.lib.output import size_text, time_text
from tools.logtool.lib.watching import watchable
from tools.serving import Service

BYTES = ("stored_bytes", "disk_free_bytes", "disk_size_bytes", "pending_bytes")


def _from_files(data_dir: Path) -> dict[str, Any]:
    from engine.reader import DirectoryReader
    from tools.logtool.lib.stored import partitions_of, stored_topics

    reader = DirectoryReader(data_dir)
    topics = stored_topics(reader)
    partitions = [partition for topic in topics for partition in partitions_of(reader, topic)]
    disk = os.statvfs(data_dir)
    return {
        "data_dir": str(data_dir.absolute()),
        "topics": len(topics),
        "partitions_with_records": len(partitions),
        "segments": sum(len(partition.segments) for partition in partitions),
        "stored_bytes": sum(segment.size_bytes for partition in partitions for segment in partition.segments),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "disk_size_bytes": disk.f_blocks * disk.f_frsize,
        "damaged": [str(problem) for problem in reader.damaged],
    }


def _without_admin(found: Service | None) -> str:
    assert found is not None
    if found.server is not None:
        return f"process {found.server.pid}, without an admin address"
    if found.in_use:
        return found.why
    return "not running (it did not stop in order)" if found.stopped_badly else "not running"


def _item(settings: Settings) -> dict[str, Any]:
    admin = admin_of(settings)
    answer: dict[str, Any] = {}
    if admin is not None:
        answer = admin.call("GET", "/v1/status")
        server = "ready" if answer.get("ready") else "not ready"
    else:
        server = _without_admin(service(settings))
    item: dict[str, Any] = {"server": server}
    for key in ("version", "pid", "listeners", "connections", "records_published", "pending_bytes", "remote"):
        if answer.get(key) is not None:
            item[key] = answer[key]
    if "started" in answer:
        started_ms = int(float(answer["started"]) * 1000)
        item |= {"started": time_text(started_ms), "started_ms": started_ms}
    if settings.data_dir is not None:
        item |= _from_files(settings.data_dir)
        if not item["damaged"]:
            del item["damaged"]
    else:
        item |= {key: answer[key] for key in ("data_dir", "topics", *BYTES) if key in answer}
    return item


@click.command(cls=Command)
@watchable
@click.pass_obj
def status(settings: Settings) -> None:
    """Show the log at a glance: server, listeners, topics, sizes, room on the disk. From files or server."""
    output = settings.output
    shows: dict[str, Callable[[Any], str]] = dict.fromkeys(BYTES, size_text)
    item = _item(settings)
    if output.form == "table":
        item.pop("started_ms", None)
    output.fields(item, shows)

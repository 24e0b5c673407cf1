"""`debug bundle`: what a report of a defect needs, in one file. No records, no secrets; topic names only in the log.

The archive has one directory of the file's name::

    manifest.json   versions, machine, and what could not be had and why
    config.toml     every setting; secrets as "(set)"
    status.json, metrics.txt, ready.txt      of the running server
    process.txt     its limits and memory, as the kernel tells them
    topics.json     by number: settings, offsets, sizes
    segments.jsonl  each segment file with its header, what is committed, what is damaged
    files.txt       mode, owner, size, time and name of all files of the directory
    log.txt         the end of the server's log
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from netserver.admin.names import TOKEN_FILE
from netserver.config.table import as_toml
from netserver.version import product_version
from tools.logtool.cli import Group, Settings
from tools.logtool.config import loaded
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, admin_of, service
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import DEBUG_FILES_MAX, DEBUG_LOG_BYTES
from tools.logtool.lib.output import json_bytes, size_text, time_text
from tools.serving import is_holder, read_token

PACKAGES = (
    "lmdb",
    "uvloop",
    "aioquic",
    "aiohttp",
    "cryptography",
    "xxhash",
    "cramjam",
    "msgspec",
    "pyspark",
    "pyarrow",
)
JOURNAL = ("journalctl", "--unit=quintlog", "--lines=5000", "--no-pager", "--output=short-iso", "--quiet")
SECRET = b"(secret)"
SECRET_BYTES_MIN = 4
"""A shorter word is not a secret; it occurs everywhere."""


@dataclass(slots=True)
class Bundle:
    """The parts so far. A part that fails is noted, and does not keep the others out.

    Attributes:
        secrets: what may be in no part, whatever wrote it there.
    """

    parts: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    secrets: set[bytes] = field(default_factory=set)

    def add(self, name: str, content: Callable[[], bytes]) -> None:
        """Adds what `content` returns."""
        try:
            self.parts[name] = content()
        except Exception as error:  # noqa: BLE001 - something is wrong where a bundle is made, perhaps just this
            self.missing[name] = str(error) or type(error).__name__

    def write(self, path: Path) -> None:
        """Writes the archive, for its owner alone. Raises Failure: the file is there; OSError."""
        manifest = {
            "schema": 1,
            "made": time_text(int(time.time() * 1000)),
            "quintlog": product_version(),
            "python": platform.python_version(),
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "packages": dict(_versions()),
            "missing": self.missing,
        }
        parts = {"manifest.json": json_bytes(manifest) + b"\n", **self.parts}
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            hint = "-O FILE names another one"
            raise Failure(errors.CONFLICT, "exists", f"{path} is there already", hint) from None
        try:
            with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, content in parts.items():
                    clean = self._without_secrets(content)
                    entry = tarfile.TarInfo(f"{path.name.partition('.tar')[0]}/{name}")
                    entry.size, entry.mtime, entry.mode = len(clean), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(clean))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _without_secrets(self, content: bytes) -> bytes:
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= SECRET_BYTES_MIN:
                content = content.replace(secret, SECRET)
        return content


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


# --- the parts


def _configuration(settings: Settings, path: Path | None, bundle: Bundle) -> bytes:
    """Raises Failure: it is not valid."""
    config = loaded(settings, path)
    bundle.secrets.update(key.encode() for key in config.blipmq.allowed_api_keys)
    return f"# read from {path}\n".encode() * (path is not None) + as_toml(config).encode()


def _of_the_process(pid: int) -> bytes:
    """Raises OSError: it is not there, or somebody else's."""
    names = ("status", "limits", "mountinfo")
    return b"".join(b"--- %s\n" % name.encode() + Path(f"/proc/{pid}/{name}").read_bytes() for name in names)


def _config_of_the_process(pid: int) -> Path | None:
    """The file that a running server was started with."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
    for at, word in enumerate(words):
        if word == "--config" and at + 1 < len(words):
            return cwd / words[at + 1]
        if word.startswith("--config="):
            return cwd / word.removeprefix("--config=")
    return None


def _files(data_dir: Path) -> bytes:
    lines: list[str] = []
    for folder, _, names in os.walk(data_dir):
        for name in [".", *sorted(names)]:
            path = Path(folder) / name
            if len(lines) >= DEBUG_FILES_MAX:
                return "\n".join([*lines, "and more", ""]).encode("utf-8", "backslashreplace")
            try:
                facts = path.lstat()
            except FileNotFoundError:  # removed meanwhile
                continue
            owner, when = f"{facts.st_uid}:{facts.st_gid}", time_text(int(facts.st_mtime * 1000))
            lines.append(f"{facts.st_mode:06o} {owner} {facts.st_size:>14} {when} {path.relative_to(data_dir)}")
    return "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")


def _stored(data_dir: Path, bundle: Bundle) -> None:
    """Adds topics and segments, as the files have them. Raises EngineError, OSError: no data directory."""
    from engine.reader import DirectoryReader
    from tools.logtool.lib.stored import stored_topics, topic_item

    reader = DirectoryReader(data_dir)
    try:
        topics = stored_topics(reader)
        items: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        for topic in topics:
            item = topic_item(reader, topic)
            items.append({"name_bytes": len(topic.name)} | {key: item[key] for key in item if "name" not in key})
            for index in range(topic.partition_count):
                partition = reader.partition(topic, index)
                lines += [
                    {
                        "topic": topic.id,
                        "partition": index,
                        "committed": partition.committed_seq,
                        "file": segment.path.name,
                        "first": segment.header.first_seq,
                        "segment_id": f"{segment.header.segment_id:016x}",
                        "bytes": segment.size_bytes,
                        "sealed": segment.footer is not None,
                    }
                    for segment in partition.segments
                ]
                lines += [{"topic": topic.id, "partition": index, "damage": str(one)} for one in partition.unreadable]
        lines += [{"damage": str(problem)} for problem in reader.damaged]
    finally:
        reader.close()
    bundle.add("topics.json", lambda: json_bytes({"schema": 1, "items": items}) + b"\n")
    shown = lines[:DEBUG_FILES_MAX]
    bundle.add("segments.jsonl", lambda: b"".join(json_bytes(line) + b"\n" for line in shown))


def _log(path: Path | None) -> bytes:
    """The log's last lines. Raises OSError, ValueError: says where it was looked for."""
    if path is not None:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - DEBUG_LOG_BYTES))
            content = file.read(DEBUG_LOG_BYTES)
        return content if size <= DEBUG_LOG_BYTES else content.partition(b"\n")[2]
    program = shutil.which(JOURNAL[0])
    if program is None:
        raise ValueError("there is no journal here: name the server's log with --log FILE")
    done = subprocess.run([program, *JOURNAL[1:]], capture_output=True, timeout=30, check=False)
    if not done.stdout:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ValueError(
            f"the journal has nothing of the unit quintlog ({said or 'no line'}): --log FILE names the log"
        )
    return done.stdout[-DEBUG_LOG_BYTES:]


def _server(settings: Settings, admin: Admin, bundle: Bundle) -> None:
    """Adds what the running server says."""

    def status() -> bytes:
        return json_bytes(admin.call("GET", "/v1/status")) + b"\n"

    bundle.add("status.json", status)
    bundle.add("metrics.txt", lambda: admin.text("/metrics").encode())
    bundle.add("ready.txt", lambda: (admin.not_ready_reason() or "ready").encode())


@click.group(cls=Group)
def debug() -> None:
    """For the report of a defect."""


@debug.command("bundle")
@click.option("-O", "out", metavar="FILE", type=click.Path(path_type=Path), help="quintlog-debug-TIME.tar.gz")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="The server's settings.")
@click.option("--log", "log_file", metavar="FILE", type=click.Path(path_type=Path), help="The server's log.")
@click.pass_obj
def bundle(settings: Settings, out: Path | None, config_file: Path | None, log_file: Path | None) -> None:
    """Collect in one file what a report of a defect needs; the server may run or not.

    No records, keys or tokens are in it; names of topics and addresses of clients may be in the log, and only there.
    What cannot be had is named on stderr and in manifest.json. Without --config it is the file that the running server
    was started with, without --log the journal of the unit quintlog.
    """
    target = out or Path(time.strftime("quintlog-debug-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    made, data_dir = Bundle(), settings.data_dir
    pid = None
    admin = admin_of(settings)
    if data_dir is not None:
        if not data_dir.is_dir():
            raise Failure(errors.UNREACHABLE, "data_directory", f"there is no directory {data_dir}")
        found = service(settings)
        pid = found.server.pid if found is not None and found.server is not None else None
        try:
            made.secrets.add(read_token(data_dir / TOKEN_FILE).encode())
        except OSError as error:
            made.missing[TOKEN_FILE] = f"{error}; it would only have been looked for, to be left out"
        made.add("files.txt", lambda: _files(data_dir))
        try:
            _stored(data_dir, made)
        except Exception as error:  # noqa: BLE001 - as Bundle.add
            made.missing["segments.jsonl"] = str(error)
    if pid is not None and data_dir is not None and is_holder(pid, data_dir):
        made.add("process.txt", lambda: _of_the_process(pid))
        config_file = config_file or _config_of_the_process(pid)
    made.add("config.toml", lambda: _configuration(settings, config_file, made))
    if admin is not None:
        _server(settings, admin, made)
    else:
        made.missing["status.json"] = "no server is running"
    made.add("log.txt", lambda: _log(log_file))
    made.write(target)
    for name, why in made.missing.items():
        settings.output.note(f"without {name}: {why}")
    item: dict[str, Any] = {"bundle": str(target.absolute()), "parts": len(made.parts) + 1}
    item["bytes"] = target.stat().st_size
    settings.output.fields(item, {"bytes": size_text})

"""`logtool remote` on a real server of S3: what is shown, what is restored, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from engine.remote.bucket import Bucket
from engine.remote.pins import Pin
from tests.engine_log import SMALL, EngineLog
from tests.packed_bucket import Packed, make_packed
from tests.s3_server import BUCKET, CONFIG, s3_server
from tests.unit.conftest import Logtool

pytest.importorskip("obstore", reason="S3 IS NOT TESTED: pip install -e '.[remote]'")

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]


@dataclass
class World:
    """A server with a log in its bucket, and another that is damaged."""

    port: int
    packed: Packed

    @property
    def environment(self) -> dict[str, str]:
        """What logtool finds it by."""
        return {
            "QUINTLOG_REMOTE_URL": f"s3://{BUCKET}/whole",
            "QUINTLOG_REMOTE_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": CONFIG["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": CONFIG["secret_access_key"],
            "AWS_REGION": CONFIG["region"],
        }

    def bucket(self, prefix: str) -> Bucket:
        """The objects below a prefix."""
        return Bucket.open(f"s3://{BUCKET}/{prefix}", {**CONFIG, "endpoint": f"http://127.0.0.1:{self.port}"}, 10.0)


class Halting:
    """A proxy that holds requests for segments back until it may go on.

    Attributes:
        held: one is held back.
    """

    def __init__(self, server_port: int) -> None:
        self.held, self.go_on = threading.Event(), threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def answer(handler) -> None:
                if "/segments/" in handler.path:
                    self.held.set()
                    self.go_on.wait()
                size = int(handler.headers.get("Content-Length", 0))
                with closing(HTTPConnection("127.0.0.1", server_port)) as server:
                    server.request(handler.command, handler.path, handler.rfile.read(size), dict(handler.headers))
                    answer = server.getresponse()
                    content = answer.read()
                handler.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("date", "server", "transfer-encoding"):
                        handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The bucket has `whole`, and `damaged`, where one piece is not what it was."""
    with s3_server() as port:
        made = World(port, make_packed(tmp_path_factory.mktemp("packed") / "data"))
        for prefix in ("whole", "damaged"):
            place = made.bucket(prefix)
            for name, (content, _) in made.packed.store.objects.items():
                if (prefix, name) == ("damaged", made.packed.names["piece"]):
                    content = content[:-1] + bytes([content[-1] ^ 1])
                place.put_if_absent(name, content)
        yield made


@pytest.fixture(autouse=True)
def found(world: World, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command finds the whole one."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)


def test_status(world: World, logtool: Logtool) -> None:
    code, out, err = logtool("remote", "status", "-o", "json")
    assert (code, err) == (0, "")
    (item,) = json.loads(out)["items"]
    head = world.packed.packer.head
    assert (item["version"], item["epoch"], item["lineage"]) == (head.version, 1, head.lineage)
    assert (item["topics"], item["partitions"], item["pages"], item["pins"]) == (3, 3, 2, 0)
    assert item["versions"][-1] == head.version
    code, out, _ = logtool("remote", "status")
    assert f"version        {head.version}\n" in out


def test_verify(world: World, logtool: Logtool) -> None:
    for words in ((), ("--full",)):
        code, out, err = logtool("remote", "verify", *words)
        assert (code, out) == (0, "")
        assert f"version {world.packed.packer.head.version}: 51 objects" in err
    url = f"s3://{BUCKET}/damaged"
    assert logtool("-q", "remote", "verify", "--url", url) == (0, "", "")
    code, out, err = logtool("remote", "verify", "--full", "--url", url, "-o", "json")
    assert code == 1
    document = json.loads(out)
    assert document["items"][0]["object"] == world.packed.names["piece"]
    assert document["objects"] == 51


def test_restore(world: World, logtool: Logtool, tmp_path: Path) -> None:
    target = tmp_path / "new" / "data"
    code, out, err = logtool("remote", "restore", str(target), "-o", "json")
    assert code == 0, err
    (item,) = json.loads(out)["items"]
    assert (item["topics"], item["damaged"], item["version"]) == (3, 0, world.packed.packer.head.version)
    assert [path.name for path in target.parent.iterdir()] == ["data"]
    code, out, err = logtool("--data-dir", str(target), "verify")
    assert code == 0, out + err
    with EngineLog(target, topic=SMALL) as engine:
        assert {topic: engine.values(topic) for topic in world.packed.values} == world.packed.values
    assert world.bucket("whole").list_below("pins/") == [], "its pin is gone"
    code, _, err = logtool("remote", "restore", str(target))
    assert (code, "is not empty" in err) == (6, True)


def test_a_damaged_object_leaves_nothing(world: World, logtool: Logtool, tmp_path: Path) -> None:
    code, out, err = logtool("remote", "restore", str(tmp_path / "data"), "--url", f"s3://{BUCKET}/damaged")
    assert (code, out) == (1, "")
    assert f"{world.packed.names['piece']}: the object is damaged (checksum)" in err
    assert "`logtool remote verify --full`" in err
    assert list(tmp_path.iterdir()) == []


def test_an_older_version(world: World, logtool: Logtool, tmp_path: Path) -> None:
    code, _, err = logtool("remote", "restore", str(tmp_path / "data"), "--at", "1")
    assert code == 5
    assert "version 1 is not kept any more; these can be restored:" in err
    version = world.packed.packer.head.catalog[-1].name.version
    code, out, _ = logtool("remote", "restore", str(tmp_path / "data"), "--at", str(version), "-o", "json")
    assert code == 0
    assert json.loads(out)["items"][0]["version"] == version


def test_what_a_killed_restore_left(logtool: Logtool, tmp_path: Path) -> None:
    (tmp_path / "data.partial" / "topics").mkdir(parents=True)
    code, _, err = logtool("remote", "restore", str(tmp_path / "data"))
    assert code == 6
    assert "what a restore left that was killed: remove it, and run this again" in err
    assert (tmp_path / "data.partial" / "topics").is_dir()


def test_an_interrupted_restore_leaves_nothing(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.logtool", "remote", "restore", str(tmp_path / "data")]
    with Halting(world.port) as proxy:
        environment = os.environ | {"QUINTLOG_REMOTE_ENDPOINT": f"http://127.0.0.1:{proxy.port}"}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert proxy.held.wait(60)
            assert (tmp_path / "data.partial").is_dir()
            process.send_signal(signal.SIGINT)
            proxy.go_on.set()
            _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert world.bucket("whole").list_below("pins/") == []


@pytest.mark.parametrize(
    ("words", "environment", "code", "said"),
    [
        (["--url", f"s3://{BUCKET}/nothing"], {}, 5, "there is no log in this place: it has no object named head"),
        (["--url", "nonsense"], {}, 2, "no bucket can be at this URL"),
        ([], {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 4, "no credentials were found"),
        (["--url", "s3://other/x"], {}, 4, "NoSuchBucket"),
        (["--url", ""], {}, 2, "no bucket can be at this URL"),
    ],
)
def test_what_is_said(
    words: list[str],
    environment: dict[str, str],
    code: int,
    said: str,
    logtool: Logtool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.delenv(name) if not value else monkeypatch.setenv(name, value)
    found, out, err = logtool("--timeout", "5", "remote", "status", *words)
    assert (found, out) == (code, ""), err
    assert said in err


def test_pins_are_counted(world: World, logtool: Logtool) -> None:
    place = world.bucket("whole")
    place.put_if_absent("pins/query.1", Pin(world.packed.packer.head.lineage, 3, "query", 1000).pack())
    try:
        _, out, _ = logtool("remote", "status", "-o", "json")
    finally:
        place.delete("pins/query.1")
    assert json.loads(out)["items"][0]["pins"] == 1

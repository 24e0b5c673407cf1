"""A bucket through obstore: what the library says, in our words. Servers of S3 are in tests/e2e/test_remote_s3.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from engine.errors import TooLarge
from engine.remote.bucket import Bucket
from engine.remote.store import Absent, Denied, Described, ObjectStore, Refused, StoreError, Unclear
from engine.remote.writes import create, replace_head
from tests.faulty_store import MemoryStore

obstore = pytest.importorskip("obstore", reason="OBJECT STORAGE IS NOT TESTED: pip install -e '.[remote]'")


def memory() -> Bucket:
    store = obstore.store.MemoryStore()
    return Bucket(store, store)


@pytest.fixture(params=[memory, MemoryStore], ids=["obstore", "ours"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """The library's store in memory, and the one of our tests: they have to agree."""
    made: ObjectStore = request.param()
    return made


def test_an_object_is_made_once(store: ObjectStore) -> None:
    tag = store.put_if_absent("pieces/1", memoryview(b"one"))
    with pytest.raises(Refused):
        store.put_if_absent("pieces/1", b"two")
    assert store.get("pieces/1", 3) == (b"one", tag)
    found = store.describe("pieces/1")
    assert (found.name, found.size_bytes, found.tag) == ("pieces/1", 3, tag)
    assert found.modified_ms > 0
    assert store.get_range("pieces/1", 1, 100) == b"ne"


def test_an_object_is_overwritten_by_its_tag_alone(store: ObjectStore) -> None:
    old = store.put_if_absent("head", b"one")
    new = store.put_if_match("head", b"two", old)
    for tag in (old, "another"):
        with pytest.raises(Refused):
            store.put_if_match("head", b"three", tag)
    assert store.get("head", 10) == (b"two", new)


def test_what_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(Refused):
        store.put_if_match("head", b"", "tag")
    calls: list[Callable[[], Any]] = [
        lambda: store.get("x", 1),
        lambda: store.get_range("x", 0, 1),
        lambda: store.describe("x"),
    ]
    for call in calls:
        with pytest.raises(Absent):
            call()
    store.delete("x")


def test_a_large_object_is_not_read(store: ObjectStore) -> None:
    store.put_if_absent("head", b"1234")
    with pytest.raises(TooLarge):
        store.get("head", 3)


def test_a_list_is_of_one_folder(store: ObjectStore) -> None:
    for name in ("pieces/2", "pieces/1", "piecesx/1", "head", "segments/1/0/a"):
        store.put_if_absent(name, b"")
    assert sorted(found.name for found in store.list_below("pieces/")) == ["pieces/1", "pieces/2"]
    assert [found.name for found in store.list_below("segments/")] == ["segments/1/0/a"]
    assert store.list_below("pins/") == []
    store.delete("pieces/1")
    assert [found.name for found in store.list_below("pieces/")] == ["pieces/2"]


# --- answers of a server ---


class Canned(ThreadingHTTPServer):
    """Answers every request with what stands first in `answers`: a status, a code, and headers."""

    answers: list[tuple[int, str, dict[str, str]]]
    asked: list[tuple[str, str]]


class Handler(BaseHTTPRequestHandler):
    server: Canned
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path))
        status, code, headers = self.server.answers.pop(0)
        body = (code if status == 200 else f"<Error><Code>{code}</Code></Error>").encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET = do_HEAD = do_DELETE = do_POST = answer

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Canned]:
    """A server that says what a test wants."""
    made = Canned(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.answers, made.asked = [], []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def bucket_at(server: Canned) -> Bucket:
    config = {"endpoint": f"http://127.0.0.1:{server.server_port}", "region": "x"}
    return Bucket.open("s3://bucket/prefix", config | {"access_key_id": "a", "secret_access_key": "b"}, 5.0)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "ConditionalRequestConflict", Refused),
        (412, "PreconditionFailed", Refused),
        (503, "SlowDown", Unclear),
        (500, "InternalError", Unclear),
        (403, "AccessDenied", Denied),
        (401, "Unauthorized", Denied),
        (400, "ExpiredToken", Denied),
        (404, "NoSuchBucket", Denied),
        (404, "NoSuchKey", Refused),
    ],
)
@pytest.mark.parametrize("call", ["put_if_absent", "put_if_match"])
def test_an_answer_to_a_write_is_told_and_never_repeated(
    server: Canned, call: str, status: int, code: str, kind: type[StoreError]
) -> None:
    server.answers = [(status, code, {})]
    arguments = ("head", b"content", "tag")[: 2 if call == "put_if_absent" else 3]
    with pytest.raises(kind) as raised:
        getattr(bucket_at(server), call)(*arguments)
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)
    assert server.asked == [("PUT", "/bucket/prefix/head")]


def test_reads_are_repeated(server: Canned) -> None:
    server.answers = [(503, "SlowDown", {}), (404, "NoSuchKey", {})]
    with pytest.raises(Absent):
        bucket_at(server).get("head", 1)
    assert [method for method, _ in server.asked] == ["GET", "GET"]


LISTED = """<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents><Key>prefix/pieces/1</Key>
<LastModified>2026-11-29T10:00:00.000Z</LastModified>%s<Size>5</Size></Contents></ListBucketResult>"""


def test_a_list_of_a_server_is_read(server: Canned) -> None:
    server.answers = [(200, LISTED % "<ETag>&quot;t&quot;</ETag>", {})]
    assert bucket_at(server).list_below("pieces/") == [Described("pieces/1", 5, '"t"', 1_795_946_400_000)]


def test_a_store_without_tags_is_refused(server: Canned) -> None:
    server.answers = [(200, LISTED % "", {})]
    with pytest.raises(Denied, match="no tags"):
        bucket_at(server).list_below("pieces/")


def test_removing_what_is_not_there_is_fine(server: Canned) -> None:
    server.answers = [(404, "NoSuchKey", {})]
    bucket_at(server).delete("pieces/1")
    assert len(server.asked) == 1


def test_a_place_that_cannot_be_is_told() -> None:
    for url, config in (("foo://bucket/x", {}), ("s3://bucket/x", {"nonsense": "1"}), ("nothing", {})):
        with pytest.raises(Denied, match="no bucket can be at this URL"):
            Bucket.open(url, config, 1.0)


def test_the_steps_of_writing_are_for_it() -> None:
    """Names of calls in steps are those of the protocol."""
    assert next(create("x", b"", 1)).call == "put_if_absent"
    assert next(replace_head(b"", "tag", 1)).call == "put_if_match"

"""The real server with failing system calls (plan D5; reliability rows 4, 5, 10, 11).

strace makes them fail by file, so that each place is met that syncs or writes it, whatever the code in between is.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer, publish_frame
from tests.server_support import FIGG_ONLY, publish, segment, values, wait_for_log
from tests.strace import Strace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("strace") is None,
        reason="needs root and strace: system calls of the server are made to fail from outside",
    ),
]

ACK_START = '"\\0\\6\\0\\1\\0\\0\\0\\10'
"""The header of a Figg acknowledgement as strace prints it."""
REFUSED_S = 0.3
"""A publish that is refused is not answered at all: waited for so long."""


@pytest.fixture
def quintlog(tmp_path: Path) -> Iterator[ServerProcess]:
    with server(tmp_path / "data", FIGG_ONLY) as process:
        publish(process, b"t", b"first")
        publish(process, b"other", b"first")
        yield process
        assert "Traceback" not in process.log_text, process.log_text[-5000:]


def test_a_failed_sync_is_never_acknowledged_and_the_partition_is_read_only(
    quintlog: ServerProcess, tmp_path: Path
) -> None:
    with Strace(
        quintlog.pid, tmp_path / "trace", "fdatasync", "fdatasync:error=EIO:when=1", segment(quintlog)
    ) as trace:
        assert not publish(quintlog, b"t", b"lost", timeout_s=REFUSED_S)
        wait_for_log(quintlog, "cannot sync")
        assert not publish(quintlog, b"t", b"refused", timeout_s=REFUSED_S)
        assert publish(quintlog, b"other", b"second"), "other topics go on"
        assert values(quintlog, b"t", 1) == [b"first"], "reads go on"
    failed = [call for call in trace.finished() if "INJECTED" in call.text]
    assert len(failed) == 1
    assert trace.finished()[-1] is not None
    assert len(trace.finished()) == 1, "no second sync of the same file"
    assert not publish(quintlog, b"t", b"refused, too", timeout_s=REFUSED_S), "until a restart"
    quintlog.kill()
    quintlog.start()
    assert publish(quintlog, b"t", b"after the restart")
    stored = values(quintlog, b"t", 2)
    assert stored[0] == b"first"
    assert set(stored) <= {b"first", b"lost", b"after the restart"}


@pytest.mark.parametrize(("call", "error"), [("fdatasync", "EIO"), ("pwritev2", "EIO"), ("pwritev2", "ENOSPC")])
def test_a_failure_in_a_round_of_several_topics_is_one_topic_s(
    quintlog: ServerProcess, tmp_path: Path, call: str, error: str
) -> None:
    topics = [b"other", b"t", b"third", b"other"]  # come at once: the first one's round is under way for the others
    publish(quintlog, b"third", b"first")
    path = segment(quintlog)
    with Strace(quintlog.pid, tmp_path / "trace", call, f"{call}:error={error}:when=1", path) as trace:
        with FiggPeer(quintlog.address("figg")) as peer:
            peer.socket.sendall(b"".join(publish_frame(topic, at, b"%d" % at) for at, topic in enumerate(topics)))
            peer.sent = len(topics)
            assert peer.wait_for_ack(0)
            wait_for_log(quintlog, "cannot" if error == "EIO" else "no space left")
            assert values(quintlog, b"third", 2) == [b"first", b"2"]
            assert values(quintlog, b"other", 3) == [b"first", b"0", b"3"]
        assert publish(quintlog, b"third", b"more")
        assert publish(quintlog, b"t", b"more", timeout_s=REFUSED_S) == (call == "pwritev2")
    assert sum("INJECTED" in one.text for one in trace.finished()) == 1
    assert values(quintlog, b"t", 1) == [b"first"]
    quintlog.restart()
    assert publish(quintlog, b"t", b"last")
    assert values(quintlog, b"third", 3) == [b"first", b"2", b"more"]
    behind = {b"more"} if call == "pwritev2" else {b"1", b"last"}  # what could not be synced may be on disk
    assert values(quintlog, b"t", 2)[1] in behind


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_refuses_and_goes_on_by_itself(quintlog: ServerProcess, tmp_path: Path, error: str) -> None:
    with Strace(quintlog.pid, tmp_path / "trace", "pwritev2", f"pwritev2:error={error}", segment(quintlog)):
        assert not publish(quintlog, b"t", b"refused", timeout_s=REFUSED_S)
        wait_for_log(quintlog, "no space left on the disk")
        assert values(quintlog, b"t", 1) == [b"first"]
        assert publish(quintlog, b"other", b"second")
    assert publish(quintlog, b"t", b"second")
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


def test_short_and_interrupted_writes_are_continued(quintlog: ServerProcess, tmp_path: Path) -> None:
    """EINTR: the call is made again. (strace cannot make a write short for real; test_files.py does.)"""
    with Strace(
        quintlog.pid, tmp_path / "trace", "pwritev2", "pwritev2:error=EINTR:when=1", segment(quintlog)
    ) as trace:
        assert publish(quintlog, b"t", b"second")
    assert [("EINTR" in call.text) for call in trace.finished()] == [True, False]
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


def test_a_failed_undo_makes_the_partition_read_only(quintlog: ServerProcess, tmp_path: Path) -> None:
    path = segment(quintlog)
    with Strace(quintlog.pid, tmp_path / "trace", "ftruncate,pwritev2", "ftruncate,pwritev2:error=EIO", path):
        assert not publish(quintlog, b"t", b"lost", timeout_s=REFUSED_S)
        wait_for_log(quintlog, "could not be taken back")
    assert not publish(quintlog, b"t", b"refused", timeout_s=REFUSED_S)
    quintlog.restart()
    assert publish(quintlog, b"t", b"second")
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


def test_the_watermarks_file_failing_costs_nothing(quintlog: ServerProcess, tmp_path: Path) -> None:
    """They are a lower bound: what was acknowledged is on disk without them."""
    path = quintlog.data_dir / "watermarks"
    with Strace(quintlog.pid, tmp_path / "trace", "pwritev2,fdatasync", "pwritev2,fdatasync:error=EIO", path):
        for number in range(5):
            assert publish(quintlog, b"t", b"%d" % number)
        wait_for_log(quintlog, "cannot write its watermark")
        quintlog.kill()
    quintlog.start()
    assert values(quintlog, b"t", 6) == [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert publish(quintlog, b"t", b"more")


@pytest.mark.parametrize(
    ("call", "name"), [("fsync", "topics"), ("fdatasync", "topic.json.new"), ("rename", "topic.json")]
)
def test_a_new_topic_whose_files_cannot_be_made_is_tried_again(
    quintlog: ServerProcess, tmp_path: Path, call: str, name: str
) -> None:
    topics = quintlog.data_dir / "topics"
    path = topics if name == "topics" else topics / "3" / "topic.json.new"
    if path.parent.name == "3":
        path.parent.mkdir()  # strace has to know the path; a directory without files is as good as none
    with Strace(quintlog.pid, tmp_path / "trace", call, f"{call}:error=EIO", path):
        assert not publish(quintlog, b"new", b"refused", timeout_s=REFUSED_S)
        wait_for_log(quintlog, "Input/output error")
    assert publish(quintlog, b"new", b"stored")
    assert values(quintlog, b"new", 1) == [b"stored"]


def test_a_state_that_cannot_be_synced_takes_no_new_topics_until_a_restart(
    quintlog: ServerProcess, tmp_path: Path
) -> None:
    path = quintlog.data_dir / "state" / "data.mdb"
    calls = "fdatasync,pwrite64,pwritev"
    with Strace(quintlog.pid, tmp_path / "trace", calls, "fdatasync:error=EIO:when=1", path):
        assert not publish(quintlog, b"new", b"refused", timeout_s=REFUSED_S)
        wait_for_log(quintlog, "read-only until a restart, because a commit failed")
        assert publish(quintlog, b"t", b"second"), "publishing needs no state"
    assert not publish(quintlog, b"newer", b"refused", timeout_s=REFUSED_S)
    quintlog.restart()
    assert publish(quintlog, b"newer", b"stored")
    assert values(quintlog, b"t", 2) == [b"first", b"second"]


@pytest.mark.parametrize("code", ["EIO", "EACCES"])
@pytest.mark.parametrize("name", ["", "state/data.mdb", "topics/1/0/00000000000000000001.log"])
def test_what_cannot_be_looked_at_was_not_moved(quintlog: ServerProcess, tmp_path: Path, name: str, code: str) -> None:
    """A failed stat refuses what needed it, with its own reason, and the next one is asked again."""
    reason = os.strerror(getattr(errno, code))
    path = quintlog.data_dir / name
    with Strace(quintlog.pid, tmp_path / "trace", "newfstatat", f"newfstatat:error={code}", path):
        if name != "state/data.mdb":
            wait_for_log(quintlog, f"cannot look whether all files are in their place: {path}: {reason}")
            assert publish(quintlog, b"t", b"second")
        if not name.startswith("topics"):
            assert not publish(quintlog, b"new", b"refused", timeout_s=REFUSED_S)
            wait_for_log(quintlog, reason)
    assert publish(quintlog, b"new", b"stored")
    assert publish(quintlog, b"t", b"last")
    assert values(quintlog, b"new", 1) == [b"stored"]
    assert "was moved" not in quintlog.log_text
    assert "restart" not in quintlog.log_text


def test_an_acknowledgement_waits_for_a_slow_sync(quintlog: ServerProcess, tmp_path: Path) -> None:
    with (
        Strace(quintlog.pid, tmp_path / "trace", "fdatasync", "fdatasync:delay_enter=700000", segment(quintlog)),
        FiggPeer(quintlog.address("figg")) as peer,
    ):
        begun = time.monotonic()
        peer.send(b"t", [b"second"])
        assert publish(quintlog, b"t", b"third")
        assert peer.wait_for_ack(0)
        assert time.monotonic() - begun >= 0.7


def test_files_and_directories_are_on_disk_before_the_first_acknowledgement(
    quintlog: ServerProcess, tmp_path: Path
) -> None:
    """Row 10 (KAFKA-3968): a file vanishes although it was synced, because its directory was not."""
    calls = "openat,mkdir,rename,pwrite64,pwritev2,fdatasync,fsync,sendto,write,writev,sendmsg"
    topics = quintlog.data_dir / "topics"
    with FiggPeer(quintlog.address("figg")) as peer:
        peer.read(b"t", 0, 1)
        with Strace(quintlog.pid, tmp_path / "trace", calls) as trace:
            peer.send(b"brand new", [b"x"])
            assert peer.wait_for_ack(0)
    made = trace.finished()

    def place(name: str, *parts: str, nth: int = 0) -> int:
        """Where the n-th such call stands."""
        return [at for at, call in enumerate(made) if call.name == name and all(p in call.text for p in parts)][nth]

    topic, partition = f"{topics}/3", f"{topics}/3/0"
    (acknowledged,) = (
        at for at, call in enumerate(made) if call.name in ("sendto", "write", "sendmsg") and ACK_START in call.text
    )
    in_order = [
        place("mkdir", f'{topic}"'),
        place("fdatasync", f"{topic}/topic.json.new>"),
        place("rename", f"{topic}/topic.json"),
        place("mkdir", f'{partition}"'),
        place("openat", f"{partition}/0", "O_CREAT"),
        place("fsync", f"{partition}>"),
        place("fsync", f"{topic}>"),
        place("fsync", f"{topics}>"),
        place("pwritev2", f"{partition}/0", nth=1),  # the record
        place("fdatasync", f"{partition}/0"),  # and with it the header
        acknowledged,
    ]
    assert in_order == sorted(in_order), (in_order, made)


def test_descriptors_of_the_machine_used_up(quintlog: ServerProcess, tmp_path: Path) -> None:
    with Strace(quintlog.pid, tmp_path / "trace", "openat", "openat:error=EMFILE", quintlog.data_dir / "topics"):
        assert publish(quintlog, b"t", b"second"), "open files need no descriptor"
        assert not publish(quintlog, b"new", b"refused", timeout_s=REFUSED_S)
    assert publish(quintlog, b"new", b"stored")
    with socket.create_connection(quintlog.address("admin")):
        pass

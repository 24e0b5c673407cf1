"""The commands of logtool on files: what they print, on which stream, and how they end."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.engine_log import EngineLog
from tests.processes import Started
from tests.stored_log import NOW_MS, StoredPartition, example
from tools.logtool.run import run

pytestmark = pytest.mark.whole

Logtool = Callable[..., tuple[int, str, str]]
COMMAND = [sys.executable, "-m", "tools.logtool"]


@pytest.fixture
def stored(tmp_path: Path) -> StoredPartition:
    return example(tmp_path / "data")


@pytest.fixture
def logtool(stored: StoredPartition, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Logtool:
    """Runs a command line on the example; (exit code, stdout, stderr)."""
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(stored.data_dir))

    def call(*args: str) -> tuple[int, str, str]:
        code = run(args)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


# --- cat


def test_cat_gives_back_what_was_published_by_lines(logtool: Logtool) -> None:
    assert logtool("cat", "orders") == (0, "".join(f"value {seq}\n" for seq in range(1, 91)), "")


@pytest.mark.parametrize(
    ("args", "first", "end"),
    [
        (["--from", "88"], 88, 91),
        (["--from", "-3"], 88, 91),
        (["--from", "+5", "--to", "8"], 6, 8),
        (["--to", "+2"], 1, 3),
        (["--limit", "4", "--from", "28"], 28, 32),
        (["--from", "@2026-11-27T10:08Z"], 81, 91),
        (["--from", "@2026-11-27T10:07:30", "--to", "@2026-11-27T10:08"], 81, 81),
        (["--from", "latest"], 91, 91),
        (["--from", "70", "--to", "60"], 70, 70),
    ],
)
def test_cat_ranges(logtool: Logtool, args: list[str], first: int, end: int) -> None:
    assert logtool("cat", "orders:0", *args) == (0, "".join(f"value {seq}\n" for seq in range(first, end)), "")


def test_cat_formats(logtool: Logtool) -> None:
    assert logtool("cat", "orders", "--limit", "1", "--format", r"%o|%t|%s|%v\0") == (
        0,
        "1|2026-11-27T10:00:00.000Z|7|value 1\0",
        "",
    )
    assert json.loads(logtool("-o", "json", "cat", "orders", "--from", "90")[1]) == {
        "schema": 1,
        "items": [
            {
                "offset": 90,
                "timestamp": "2026-11-27T10:08:00.000Z",
                "timestamp_ms": NOW_MS + 8 * 60_000,
                "value": "value 90",
            }
        ],
    }
    rows = list(csv.DictReader(io.StringIO(logtool("cat", "orders", "-o", "csv", "--from", "90")[1])))
    assert [row["value"] for row in rows] == ["value 90"]
    lines = logtool("cat", "orders", "-o", "jsonl", "--to", "3")[1].splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [1, 2]


def test_cat_filters(logtool: Logtool, stored: StoredPartition) -> None:
    values = [b'{"n": 1}', b'{"n": 2, "who": {"name": "x"}}', b"no json"]
    stored.write(values, keys=[b"a", b"b", b"a"])
    stored.mark()
    offsets = ["cat", "orders", "--format", r"%o "]
    assert logtool(*offsets, "--contains", "value 7") == (0, "7 70 71 72 73 74 75 76 77 78 79 ", "")
    assert logtool(*offsets, "--key", "a")[1] == "91 93 "
    assert logtool(*offsets, "--where", "/n=2", "--where", "/who/name=x")[1] == "92 "
    assert logtool(*offsets, "--key", "b", "--contains", "no json", "--fail-empty") == (1, "", "")


def test_cat_decodes(logtool: Logtool) -> None:
    assert logtool("cat", "orders", "--limit", "1", "--decode", "hex")[1] == b"value 1".hex() + "\n"
    code, out, err = logtool("cat", "orders", "--limit", "1", "--decode", "json")
    assert (code, out) == (2, "")
    assert "record 1:" in err


def test_cat_goes_on_behind_damage_and_says_so(logtool: Logtool, stored: StoredPartition) -> None:
    flip(stored.paths[1], 200)
    code, out, err = logtool("cat", "orders")
    assert code == 1
    assert out == "".join(f"value {seq}\n" for seq in range(1, 91) if not 31 <= seq <= 40)
    assert "lost: records 31 to 40" in err


def test_cat_of_what_is_not_there(logtool: Logtool, stored: StoredPartition) -> None:
    code, out, err = logtool("cat", "nothing")
    assert (code, out) == (5, "")
    assert "no topic 'nothing'" in err
    assert logtool("cat", "orders:7")[0] == 5
    code, _, err = logtool("-o", "json", "cat", "nothing")
    assert code == 5
    assert json.loads(err)["error"]["code"] == "unknown_topic"
    stored.log_start = 40
    stored.mark()
    assert logtool("cat", "orders", "--from", "5", "--limit", "1") == (
        0,
        "value 40\n",
        "logtool: records before 40 are no longer there\n",
    )


def test_cat_goes_on_where_retention_left_something(stored: StoredPartition) -> None:
    """Two segments are removed while it waits for its output to be read."""
    for _ in range(3):
        stored.begin_segment()
        for _ in range(20):
            stored.write([b"x" * 5000] * 2)
    stored.mark()
    command = [*COMMAND, "--data-dir", str(stored.data_dir), "cat", "orders", "--format", r"%o\n%v\n"]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"92\n":  # in the first of the new ones; the pipe holds less than it
            pass
        stored.log_start = 171
        stored.mark()
        for path in stored.paths[:5]:
            path.unlink()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    offsets = [int(line) for line in out.splitlines() if line.isdigit()]
    assert offsets == [*range(93, 131), *range(171, 211)]
    assert err == b"logtool: records 131 to 170 were removed meanwhile\n"


# --- tail


def test_tail_says_what_was_removed_in_front_of_it(stored: StoredPartition) -> None:
    """Retention overtakes it while it waits for more."""
    command = [*COMMAND, "--data-dir", str(stored.data_dir), "tail", "orders", "--from", "-1", "--limit", "3"]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"value 90\n"
        for _ in range(2):
            stored.begin_segment()
            stored.write([b"new"] * 10)
        stored.log_start = 101
        stored.mark()
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"new\nnew\n")
    assert err == b"logtool: records 91 to 100 were removed meanwhile\n"


def test_tail_with_an_end(logtool: Logtool) -> None:
    assert logtool("tail", "orders", "--limit", "3") == (0, "value 88\nvalue 89\nvalue 90\n", "")
    assert logtool("tail", "orders", "--from", "-10", "--limit", "2") == (0, "value 81\nvalue 82\n", "")
    assert logtool("tail", "orders", "--to", "latest")[1].count("\n") == 10
    assert logtool("tail", "orders", "--to", "latest", "--from", "-2") == (0, "value 89\nvalue 90\n", "")


def test_tail_follows_until_interrupted(stored: StoredPartition) -> None:
    environment = {**os.environ, "QUINTLOG_DATA_DIR": str(stored.data_dir)}
    with Started([*COMMAND, "tail", "orders", "--from", "90"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"value 90\n"
        stored.write([b"value 91"])
        stored.mark()
        assert process.stdout.readline() == b"value 91\n"
        stored.begin_segment()
        stored.write([b"value 92"])
        stored.mark()
        assert process.stdout.readline() == b"value 92\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


# --- dump


def test_dump_segment(logtool: Logtool, stored: StoredPartition) -> None:
    code, out, err = logtool("dump", "segment", str(stored.paths[0]), "-o", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["segment"]["state"] == "sealed"
    assert (document["segment"]["first"], document["segment"]["last"], document["segment"]["records"]) == (1, 30, 30)
    assert [(item["first"], item["last"], item["records"], item["state"]) for item in document["items"]] == [
        (1, 10, 10, "good"),
        (11, 20, 10, "good"),
        (21, 30, 10, "good"),
    ]
    assert document["items"][0]["position"] == 72
    ends = [item["position"] + item["bytes"] for item in document["items"]]
    assert ends == [
        document["items"][1]["position"],
        document["items"][2]["position"],
        document["segment"]["batches_end"],
    ]


def test_dump_segment_as_a_table(logtool: Logtool, stored: StoredPartition) -> None:
    code, out, _ = logtool("dump", "segment", str(stored.paths[2]))
    assert code == 0
    head, _, table = out.partition("\n\n")
    assert "state             active" in head
    lines = table.splitlines()
    titles = "POSITION BYTES FIRST LAST RECORDS MAX TIME APPEND TIME DURABLE MARK STATE"
    assert " ".join(lines[0].split()) == titles
    assert [line.split()[2:5] for line in lines[1:]] == [["61", "70", "10"], ["71", "80", "10"], ["81", "90", "10"]]


def test_dump_segment_tells_what_is_not_committed(logtool: Logtool, stored: StoredPartition) -> None:
    stored.write([b"later"])
    with stored.paths[-1].open("ab") as file:
        file.write(b"\xd9QLB torn")
    code, out, _ = logtool("dump", "segment", str(stored.paths[2]), "-o", "json")
    assert code == 0
    assert [item["state"] for item in json.loads(out)["items"]][2:] == [
        "good",
        "not committed",
        "not committed, incomplete",
    ]
    assert logtool("dump", "segment", str(stored.paths[2]), "--records")[1].count("\n") == 30


def test_dump_segment_shows_damage(logtool: Logtool, stored: StoredPartition) -> None:
    flip(stored.paths[0], 72 + 100)
    code, out, _ = logtool("dump", "segment", str(stored.paths[0]), "-o", "jsonl")
    assert code == 1
    items = [json.loads(line) for line in out.splitlines()]
    assert [item["state"] for item in items] == ["damaged: batch body (checksum)", "good", "good"]
    assert (items[0]["first"], items[0]["last"]) == (1, 10)


def test_dump_segment_records_agree_with_cat(logtool: Logtool, stored: StoredPartition) -> None:
    template = ["--format", r"%o %T %v\n"]
    dumped = [logtool("dump", "segment", str(path), "--records", *template)[1] for path in stored.paths]
    assert "".join(dumped) == logtool("cat", "orders", *template)[1]
    assert logtool("dump", "segment", str(stored.paths[0]), "--records")[1].startswith(
        "1\t2026-11-27T10:00:00.000Z\t\tvalue 1\n"
    )


def test_dump_segment_of_something_else(logtool: Logtool, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 500)
    code, out, err = logtool("dump", "segment", str(other))
    assert (code, out) == (1, "")
    assert "not a segment file" in err
    assert logtool("dump", "segment", str(tmp_path / "missing"))[0] == 3


def test_dump_topic(logtool: Logtool, stored: StoredPartition) -> None:
    document = json.loads(logtool("-o", "json", "dump", "topic", "orders")[1])
    assert document["topic"]["topic"] == "orders"
    assert document["topic"]["config"] == {"retention_ms": "7d"}
    assert document["partitions"] == [{"partition": 0, "log_start": 1, "committed": 90}]
    assert [(item["state"], item["first"], item["last"]) for item in document["items"]] == [
        ("sealed", 1, 30),
        ("sealed", 31, 60),
        ("active", 61, 90),
    ]
    assert "records 1 to 90" in logtool("dump", "topic", "orders")[1]


# --- verify


def test_verify_of_a_sound_log(logtool: Logtool) -> None:
    code, out, err = logtool("verify", "-o", "json")
    assert code == 0
    document = json.loads(out)
    assert document["findings"] == []
    (item,) = document["items"]
    assert (item["topic"], item["segments"], item["batches"], item["records"]) == ("orders", 3, 9, 90)
    assert (item["first"], item["last"], item["findings"]) == (1, 90, 0)
    assert err.endswith("verified, no findings\n")


def test_verify_shows_a_terminal_how_far_it_is(stored: StoredPartition) -> None:
    """On stderr, and only there: stdout is the table."""
    ours, theirs = pty.openpty()
    imports = "import sys; from tools.logtool import run; from tools.logtool.lib import progress"
    code = f"{imports}; progress.EVERY_S = 0; sys.exit(run.run())"
    words = [sys.executable, "-c", code, "--data-dir", str(stored.data_dir), "verify"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert re.search(rb"\r\x1b\[Kverified [\d.]+ (B|KiB) of [\d.]+ (B|KiB) \(\d+%\), 0 s left", shown)
    assert b"verified" not in done.stdout


def test_verify_one_segment(logtool: Logtool, stored: StoredPartition) -> None:
    (item,) = json.loads(logtool("verify", str(stored.paths[1]), "-o", "json")[1])["items"]
    assert (item["segments"], item["records"], item["first"], item["last"]) == (1, 30, 31, 60)


def findings(logtool: Logtool) -> list[dict[str, Any]]:
    code, out, err = logtool("verify", "-o", "json")
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    assert code == 1
    assert all(finding["file"] in err for finding in found)
    return found


def test_verify_finds_a_flipped_bit(logtool: Logtool, stored: StoredPartition) -> None:
    flip(stored.paths[1], 72 + 150)
    (found,) = findings(logtool)
    assert (found["kind"], found["first"], found["last"], found["position"]) == ("damage", 31, 40, 72)


def test_verify_finds_every_flipped_byte_of_a_segment(stored: StoredPartition, logtool: Logtool) -> None:
    """The smallest sealed segment, each byte in turn."""
    path = stored.paths[0]
    sound = path.read_bytes()
    for position in range(0, len(sound), 7):
        flip(path, position)
        assert logtool("verify")[0] == 1, f"byte {position} of {len(sound)}"
        path.write_bytes(sound)
    assert logtool("verify")[0] == 0


def test_verify_finds_what_is_missing(logtool: Logtool, stored: StoredPartition) -> None:
    content = stored.paths[2].read_bytes()
    stored.paths[2].write_bytes(content[:-5])
    assert {found["kind"] for found in findings(logtool)} == {"damage", "segment"}
    stored.paths[2].unlink()
    assert [found["kind"] for found in findings(logtool)] == ["segment"]


def test_verify_finds_a_swapped_segment(logtool: Logtool, stored: StoredPartition) -> None:
    """A file under another's name, sound in itself."""
    stored.paths[1].write_bytes(stored.paths[0].read_bytes())
    (found,) = findings(logtool)
    assert (found["kind"], found["file"]) == ("segment", str(stored.paths[1]))
    assert "its header says topic 1 partition 0 record 1" in found["reason"]


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logtool: Logtool) -> Path:
    """A directory as a server left it, in place of the example."""
    data = tmp_path / "whole"
    with EngineLog(data) as engine:
        engine.append([b"x"])
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(data))
    assert logtool("verify")[0] == 0
    return data


@pytest.mark.parametrize("name", ["state", "index"])
def test_verify_finds_what_is_wrong_with_state_and_index(whole: Path, logtool: Logtool, name: str) -> None:
    path = whole / name / "data.mdb"
    sound = path.read_bytes()
    damages = {
        "garbage": b"\xff" * len(sound),
        "pages of zeros": sound[: 2 * 4096] + bytes(len(sound) - 2 * 4096),
        "cut off": sound[: 2 * 4096],
    }
    for what, content in damages.items():
        path.write_bytes(content)
        (found,) = findings(logtool)
        assert (found["kind"], found["file"]) == (name, str(path)), what
    for is_there in (True, False):
        path.write_bytes(b"")
        if not is_there:
            path.unlink()
        if name == "index":
            assert logtool("verify")[0] == 0, "it is made anew, and nothing is lost"
        else:
            (found,) = findings(logtool)
            assert "missing" in found["reason"]
    path.write_bytes(sound)
    assert logtool("verify")[0] == 0


def test_verify_finds_damaged_values_of_the_state(whole: Path, logtool: Logtool) -> None:
    with lmdb.open(str(whole / "state"), lib_version=0) as environment, environment.begin(write=True) as transaction:
        key, stored = next(iter(transaction.cursor()))
        transaction.put(key, stored[:-1] + bytes([stored[-1] ^ 1]))
    assert {found["kind"] for found in findings(logtool)} == {"state"}


def test_verify_beside_a_server_leaves_its_state_alone(whole: Path, logtool: Logtool) -> None:
    with EngineLog(whole):
        code, _, err = logtool("verify")
        assert code == 0
        assert "a server has the directory" in err


def test_verify_passes_over_what_is_not_committed(logtool: Logtool, stored: StoredPartition) -> None:
    with stored.paths[-1].open("ab") as file:
        file.write(b"\xd9QLB torn")
    assert logtool("verify")[0] == 0


# --- the frame


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--help"], 0),
        (["cat", "--help"], 0),
        (["topics", "--help"], 0),
        (["nonsense"], 2),
        (["cat"], 2),
        (["cat", "orders", "--from", "yesterday"], 2),
        (["cat", "orders", "--format", "%y"], 2),
        (["-o", "xml", "status"], 2),
        (["--data-dir", "x", "--server", "y", "cat", "orders"], 2),
        (["--data-dir", "/nonexistent", "cat", "orders"], 3),
        (["publish", "orders", "--via", "carrier-pigeon"], 2),
        (["publish", "orders", "--via", "figg", "--key", "k"], 2),
        (["topics", "create", "x", "partitions"], 2),
        (["topics", "delete", "orders", "--server", "http://127.0.0.1:1"], 3),
    ],
)
def test_exit_codes(logtool: Logtool, args: list[str], code: int) -> None:
    assert logtool(*args)[0] == code


def test_an_address_is_needed(logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUINTLOG_DATA_DIR")
    code, _, err = logtool("archive-segments", "place")
    assert code == 2
    assert "--data-dir" in err


def test_a_bug_is_reported(logtool: Logtool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tools.logtool.cat._Run", lambda *_: 1 // 0)
    code, _, err = logtool("cat", "orders")
    assert code == 70
    (report,) = tmp_path.glob("logtool-bug-*.txt")
    assert str(report) in err
    assert "ZeroDivisionError" in report.read_text()


def test_a_closed_pipe_is_quiet(stored: StoredPartition) -> None:
    for _ in range(30):
        stored.write([b"x" * 5000] * 20)
    stored.mark()
    command = [*COMMAND, "--data-dir", str(stored.data_dir), "cat", "orders"]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"value 1\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 141


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['logtool', '--help']\n"
        "from tools.logtool.run import run\n"
        "run()\n"
        "heavy = {'aiohttp', 'uvloop', 'pyarrow', 'pyspark', 'lmdb', 'asyncio', 'rich', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0

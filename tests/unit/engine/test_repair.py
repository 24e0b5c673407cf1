"""`logtool repair`: the plan changes nothing and names what is given up; applying it makes the directory usable."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import TopicConfig
from engine.errors import Corrupt, DataDirectoryError
from engine.files.overlay import PAGE_BYTES, OverlayFiles
from engine.files.system import SystemFiles, write_new_file
from engine.repair import Repair, Step
from tests.engine_log import EngineLog, segments
from tools.logtool.run import run

SMALL = TopicConfig(segment_bytes=64 << 10)


def make(path: Path) -> Path:
    """Two topics: "t" with several segments of 120 records, "other" with one record."""
    with EngineLog(path, topic=SMALL) as engine:
        for number in range(12):
            engine.append([b"%d.%d " % (number, k) + b"." * 2000 for k in range(10)])
        engine.append([b"other"], topic="other")
    return path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("repair") / "image")


@pytest.fixture
def data(image: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(image, tmp_path / "data"))


def snapshot(path: Path) -> dict[str, str]:
    """Every file with a hash of its content; LMDB's lock files and LOCK are no content."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("LOCK", "lock.mdb")
    }


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def plan_then_apply(data: Path) -> list[Step]:
    """The plan is what is done; it changes nothing itself, and nothing is left to do afterwards."""
    before = snapshot(data)
    plan = Repair(data).run()
    assert snapshot(data) == before, "a plan changes nothing"
    done = Repair(data, apply=True).run()
    assert [(step.kind, step.first_seq, step.last_seq) for step in done] == [
        (step.kind, step.first_seq, step.last_seq) for step in plan
    ]
    assert not [step for step in Repair(data).run() if step.changes], "nothing is left to be mended"
    return plan


def kinds(steps: list[Step]) -> list[str]:
    return [step.kind for step in steps]


def test_a_sound_directory_needs_nothing(data: Path) -> None:
    assert plan_then_apply(data) == []


def test_a_torn_tail_is_cut_and_kept(data: Path) -> None:
    file = segments(data)[-1]
    with file.open("ab") as tail:
        tail.write(b"torn")
    (step,) = plan_then_apply(data)
    assert (step.kind, step.changes) == ("tail", True)
    assert "never acknowledged" in step.problem
    (kept,) = (data / "set-aside").iterdir()
    assert kept.read_bytes() == b"torn"
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_damaged_records_are_named_with_every_number(data: Path) -> None:
    first, last = segments(data)[0], segments(data)[-1]
    overwrite(first, 1000, b"\xff" * 10)
    overwrite(last, last.stat().st_size - 50, b"\xff" * 10)
    steps = plan_then_apply(data)
    assert kinds(steps) == ["records", "records"]
    assert not any(step.changes for step in steps), "readers pass them by: nothing has to be done"
    given_up = {seq for step in steps for seq in range(step.first_seq, step.last_seq + 1)}
    with EngineLog(data, topic=SMALL) as engine:
        found = {record.seq for record in engine.read()}
        lost = {seq for low, high in engine.lost for seq in range(low, high + 1)}
    assert given_up == lost
    assert found | lost == set(range(1, 121))


def test_a_partition_without_files_begins_behind_what_was_committed(data: Path) -> None:
    for file in segments(data):
        file.unlink()
    with EngineLog(data) as engine, pytest.raises(DataDirectoryError, match="logtool repair"):
        engine.partition()
    (step,) = plan_then_apply(data)
    assert (step.kind, step.topic, step.first_seq, step.last_seq) == ("records", b"t", 1, 120)
    with EngineLog(data, topic=SMALL) as engine:
        assert engine.partition().log_start == 121
        engine.append([b"next"])
        assert [record.seq for record in engine.read()] == [121]
        assert engine.values("other") == [b"other"]


def test_what_stands_behind_a_footer_is_set_aside(data: Path, logtool: Callable[..., Any]) -> None:
    whole = segments(data)[0].read_bytes()
    with segments(data)[0].open("ab") as file:
        file.write(b"junk")
    (step,) = plan_then_apply(data)
    assert (step.kind, step.changes) == ("file", True)
    assert segments(data)[0].read_bytes() == whole
    (kept,) = (data / "set-aside").iterdir()
    assert kept.read_bytes().endswith(b"junk")
    assert logtool("verify")[0] == 0


def test_a_segment_that_is_gone_from_the_middle_is_told(data: Path, logtool: Callable[..., Any]) -> None:
    gone = segments(data)[1]
    first, behind = int(gone.stem), int(segments(data)[2].stem)
    gone.unlink()
    code, _, err = logtool("verify")
    assert code == 1
    assert f"records {first} to {behind - 1}" in err
    steps = plan_then_apply(data)
    assert [(step.first_seq, step.last_seq) for step in steps if step.kind == "records"] == [(first, behind - 1)]
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120 - (behind - first)
        assert engine.lost == [(first, behind - 1)]


def test_a_topic_whose_directory_is_gone_begins_behind_what_was_committed(data: Path) -> None:
    shutil.rmtree(data / "topics" / "1")
    assert ("records", 1, 120) in [(step.kind, step.first_seq, step.last_seq) for step in plan_then_apply(data)]
    with EngineLog(data, topic=SMALL) as engine:
        engine.append([b"next"])
        assert [record.seq for record in engine.read()] == [121]


def test_a_damaged_state_is_moved_aside(data: Path) -> None:
    state = data / "state" / "data.mdb"
    overwrite(state, 0, os.urandom(state.stat().st_size))
    with pytest.raises(Corrupt, match="logtool repair"):
        EngineLog(data)
    content = state.read_bytes()
    (step,) = plan_then_apply(data)
    assert step.kind == "state"
    assert "cursors and sessions are gone" in step.action
    assert (data / "state.damaged-1" / "data.mdb").read_bytes() == content
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120
        assert engine.values("other") == [b"other"]


def test_a_damaged_index_is_moved_aside(data: Path) -> None:
    index = data / "index" / "data.mdb"
    overwrite(index, 0, os.urandom(index.stat().st_size))
    assert kinds(plan_then_apply(data)) == ["index"]
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_environments_whose_files_are_empty_are_told_as_missing(data: Path) -> None:
    for name in ("state", "index"):
        os.truncate(data / name / "data.mdb", 0)
    steps = plan_then_apply(data)
    assert [(step.kind, step.changes) for step in steps] == [("state", False), ("index", False)]


def test_environments_that_are_missing_are_told(data: Path) -> None:
    shutil.rmtree(data / "state")
    shutil.rmtree(data / "index")
    steps = Repair(data).run()
    assert [(step.kind, step.changes) for step in steps] == [("state", False), ("index", False)]


@pytest.mark.parametrize("content", [None, b"", b"garbage", b'{"format": 1}'])
def test_version_is_made_anew_with_the_id_of_the_watermarks(data: Path, content: bytes | None) -> None:
    version = data / "VERSION"
    directory_id = json.loads(version.read_bytes())["id"]
    version.unlink()
    if content is not None:
        version.write_bytes(content)
    with pytest.raises(DataDirectoryError):
        EngineLog(data)
    assert kinds(plan_then_apply(data)) == ["version"]
    assert json.loads(version.read_bytes()) == {"format": 1, "id": directory_id}
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_version_and_watermarks_lost_together(data: Path) -> None:
    (data / "VERSION").unlink()
    (data / "watermarks").write_bytes(b"short")
    assert kinds(plan_then_apply(data)) == ["version", "watermarks"]
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_a_newer_format_is_refused(data: Path) -> None:
    (data / "VERSION").write_text('{"format": 2, "id": 1}')
    with pytest.raises(Exception, match="format 2"):
        Repair(data).run()


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="no data directory"):
        Repair(tmp_path).run()


def test_a_description_is_made_anew_from_the_state(data: Path) -> None:
    path = data / "topics" / "1" / "topic.json"
    for content in (None, "{", "[" * 100_000, '{"id": 2}'):
        path.unlink()
        if content is not None:
            path.write_text(content)
        (step,) = plan_then_apply(data)
        assert (step.kind, step.topic) == ("topic", b"t")
        assert json.loads(path.read_text())["name"] == "t"


def test_a_topic_that_nobody_knows_gets_a_name(data: Path) -> None:
    shutil.rmtree(data / "state")
    (data / "topics" / "1" / "topic.json").unlink()
    steps = plan_then_apply(data)
    assert ("topic", b"recovered-1") in [(step.kind, step.topic) for step in steps]
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.values("recovered-1")) == 120


def test_a_damaged_header_is_rebuilt_and_strangers_are_renamed(data: Path) -> None:
    overwrite(segments(data)[0], 0, bytes(40))
    stranger = segments(data)[0].with_name("00000000000000000999.log")
    stranger.write_bytes(b"not a segment" * 100)
    steps = plan_then_apply(data)
    assert kinds(steps) == ["file", "file"]
    assert "header rebuilt" in steps[0].problem
    assert "renamed to" in steps[1].problem
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_files_that_cannot_be_read_are_told_and_left(data: Path) -> None:
    (segments(data)[-1].parent / "00000000000000000999.log").symlink_to("itself")
    os.symlink("00000000000000000998.log", segments(data)[-1].parent / "00000000000000000998.log")
    steps = Repair(data).run()
    assert [(step.kind, step.changes) for step in steps] == [("file", False)]
    assert "mend this first" in steps[0].action


def test_values_of_the_state_that_are_damaged_are_told(data: Path) -> None:
    import lmdb

    environment = lmdb.open(str(data / "state"), map_size=1 << 20, lib_version=0)
    with environment, environment.begin(write=True) as changes:
        (key, value) = next(item for item in changes.cursor() if item[0].startswith(b"t/"))
        changes.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    steps = Repair(data).run()
    assert [(step.kind, step.changes) for step in steps] == [("state", False)]


# --- the command


@pytest.fixture
def logtool(
    data: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    for name in list(os.environ):
        if name.startswith("QUINTLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUINTLOG_DATA_DIR", str(data))

    def call(*args: str) -> tuple[int, str, str]:
        code = run(args)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def test_repair_on_the_command_line(data: Path, logtool: Callable[..., Any]) -> None:
    assert logtool("repair")[0] == 0
    overwrite(segments(data)[0], 1000, b"\xff" * 10)
    with segments(data)[-1].open("ab") as tail:
        tail.write(b"torn")
    before = snapshot(data)
    code, out, err = logtool("repair")
    assert code == 1
    assert snapshot(data) == before
    assert "records" in out
    assert "tail" in out
    assert "nothing was changed: --apply does it" in err
    code, out, err = logtool("repair", "-o", "json")
    items = json.loads(out)["items"]
    assert [item["kind"] for item in items] == ["tail", "records"]
    assert items[1]["last"] >= items[1]["first"] == 1
    code, _, err = logtool("repair", "--apply", "--no-input")
    assert code == 2
    assert "say --yes if that is meant" in err
    assert snapshot(data) == before
    assert logtool("repair", "--apply", "--yes")[0] == 0
    assert snapshot(data) != before
    code, out, _ = logtool("repair", "-o", "json")
    assert [item["kind"] for item in json.loads(out)["items"]] == ["records"]


def test_repair_plan_of_verify(data: Path, logtool: Callable[..., Any]) -> None:
    with segments(data)[-1].open("ab") as tail:
        tail.write(b"torn")
    code, out, _ = logtool("verify", "--repair-plan", "-o", "json")
    assert code == 0, "bytes behind what is committed are not a finding"
    document = json.loads(out)
    assert [step["kind"] for step in document["repair_plan"]] == ["tail"]
    code, out, _ = logtool("verify", "--repair-plan")
    assert "cut off and kept in set-aside/" in out
    assert "repair_plan" not in json.loads(logtool("verify", "-o", "json")[1])
    assert logtool("verify", "--repair-plan", str(segments(data)[0]))[0] == 2


def test_repair_is_refused_while_a_server_has_the_directory(data: Path, logtool: Callable[..., Any]) -> None:
    with EngineLog(data, topic=SMALL):
        code, _, err = logtool("repair")
    assert code == 6
    assert f"in use by process {os.getpid()}" in err


def test_repair_of_no_data_directory(tmp_path: Path, logtool: Callable[..., Any]) -> None:
    code, _, err = logtool("repair", str(tmp_path / "none"))
    assert code == 3
    assert "no data directory" in err
    assert not (tmp_path / "none").exists()


# --- files without consequences


def test_overlay_files_behave_like_files_and_change_nothing(tmp_path: Path) -> None:
    """The same random calls on the disk and on a copy in memory give the same results."""
    dice = random.Random(3)
    real_root, overlay_root = tmp_path / "real", tmp_path / "overlay"
    for root in (real_root, overlay_root):
        root.mkdir()
        for name in "abc":
            (root / name).write_bytes(random.Random(name).randbytes(3 * PAGE_BYTES + 100))
    before = snapshot(overlay_root)
    real, overlay = SystemFiles(), OverlayFiles()

    def both(call: Callable[[Any, Path], Any]) -> None:
        results = []
        for files, root in ((real, real_root), (overlay, overlay_root)):
            try:
                results.append(call(files, root))
            except OSError as problem:
                results.append(problem.errno)
        assert results[0] == results[1]

    def with_file(name: str, use: Callable[[Any, int], Any]) -> Callable[[Any, Path], Any]:
        def call(files: Any, root: Path) -> Any:
            fd = files.open(root / name, write=True)
            try:
                return use(files, fd)
            finally:
                files.close(fd)

        return call

    for _ in range(600):
        name, other = dice.choice("abcde"), dice.choice("abcde")
        position, size = dice.randrange(4 * PAGE_BYTES), dice.randrange(2 * PAGE_BYTES)
        content = dice.randbytes(size)
        calls: list[Callable[[Any, Path], Any]] = [
            with_file(name, lambda f, fd, p=position, s=size: f.read(fd, s, p)),
            with_file(name, lambda f, fd, p=position, c=content: f.write(fd, [c[:7], c[7:]], p)),
            with_file(name, lambda f, fd, p=position: f.truncate(fd, p)),
            with_file(name, lambda f, fd: (f.size(fd), f.sync_data(fd))),
            with_file(name, lambda f, fd, p=position: f.read_nowait(fd, bytearray(100), p)),
            lambda f, root, n=name: f.close(f.create(root / n)),
            lambda f, root, n=name, o=other: f.rename(root / n, root / o) if n != o else None,
            lambda f, root, n=name: f.remove(root / n),
            lambda f, root, n=name: f.exists(root / n),
            lambda f, root: f.list_dir(root),
            lambda f, root: (f.make_dir(root / "z"), f.sync_dir(root), f.list_dir(root / "z")),
            lambda f, root: f.remove_dir(root / "z"),
            lambda f, root, n=name, c=content: write_new_file(f, root / n, c[:100]),
        ]
        both(dice.choice(calls))
    for name in "abcde":
        both(with_file(name, lambda f, fd: f.read(fd, 1 << 20, 0)))
    overlay.close_all()
    assert snapshot(overlay_root) == before
    assert overlay.free_bytes(tmp_path) > 0


def test_topics_and_partitions_that_are_not_sound_numbers(data: Path) -> None:
    for name in ("²", "007", "notes"):
        (data / "topics" / name).mkdir()
        (data / "topics" / "1" / name).mkdir()
    (data / "topics" / "1" / "9").mkdir()
    assert Repair(data).run() == []


def test_a_deleted_topic_whose_files_are_still_there_is_left_to_the_server(data: Path) -> None:
    with EngineLog(data, topic=SMALL) as engine:
        deleted: list[object] = []
        topic = engine.partition("other").topic
        engine.log.file_worker.submit = lambda job, done: None  # type: ignore[method-assign]
        engine.log.catalog.delete(topic, deleted.append)
        engine.inbox.run_until(lambda: bool(deleted))
        del engine.log.file_worker.submit  # type: ignore[method-assign]
    assert (data / "topics" / "2").is_dir()
    assert Repair(data).run() == []
    assert (data / "topics" / "2").is_dir()


def test_without_a_state_numbers_come_from_headers(data: Path) -> None:
    shutil.rmtree(data / "state")
    newest = segments(data)[-1]
    content = newest.read_bytes()
    newest.write_bytes(bytes(30) + content[30:])
    steps = plan_then_apply(data)
    assert [step.kind for step in steps] == ["state", "file"]
    with EngineLog(data, topic=SMALL) as engine:
        assert len(engine.read()) == 120


def test_a_partition_whose_headers_are_all_gone(data: Path) -> None:
    shutil.rmtree(data / "state")
    (data / "topics" / "1" / "0" / "notes.txt").write_text("beside the segments")
    for file in segments(data):
        content = file.read_bytes()
        file.write_bytes(bytes(72) + content[72:])
    steps = Repair(data).run()
    assert {step.kind for step in steps} == {"state", "file"}
    assert sum("header rebuilt" in step.problem for step in steps) == len(segments(data)) - 1
    assert sum("renamed to" in step.problem for step in steps) == 1, "nothing knows the active one's id"


def test_a_sealed_segment_whose_end_and_footer_are_damaged_is_named_once(data: Path) -> None:
    file = segments(data)[0]
    size = file.stat().st_size
    overwrite(file, size - 3000, bytes(3000))
    steps = [step for step in Repair(data).run() if step.kind == "records"]
    assert len(steps) == 1
    assert steps[0].last_seq == int(segments(data)[1].stem) - 1


def test_an_empty_directory_needs_nothing(tmp_path: Path) -> None:
    EngineLog(tmp_path / "d").close()
    shutil.rmtree(tmp_path / "d" / "index")
    assert Repair(tmp_path / "d").run() == []


def test_a_partition_that_never_had_a_record_is_left_alone(data: Path) -> None:
    shutil.rmtree(data / "state")
    path = data / "topics" / "1" / "topic.json"
    path.write_text(path.read_text().replace('"partitions": 1', '"partitions": 3'))
    (data / "topics" / "1" / "2").mkdir()
    assert kinds(Repair(data).run()) == ["state"]


def test_overlay_files_let_go_of_a_file_whose_size_is_refused(tmp_path: Path) -> None:
    class Refusing(SystemFiles):
        def size(self, fd: int) -> int:
            raise OSError(5, "Input/output error")

    (tmp_path / "f").write_bytes(b"x")
    overlay = OverlayFiles()
    overlay._files = Refusing()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Input/output"):
        overlay.open(tmp_path / "f")
    assert len(os.listdir("/proc/self/fd")) == before
    overlay._files = SystemFiles()
    fd = overlay.open(tmp_path / "f", write=True)
    overlay.truncate(fd, PAGE_BYTES)
    overlay.write(fd, [b"y"], 2 * PAGE_BYTES)
    overlay.truncate(fd, PAGE_BYTES)
    assert overlay.read(fd, 3 * PAGE_BYTES, 0) == b"x" + bytes(PAGE_BYTES - 1)
    overlay.close(fd)
    overlay.close_all()
    assert (tmp_path / "f").read_bytes() == b"x"

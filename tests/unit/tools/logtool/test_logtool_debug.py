"""logtool debug bundle: what is in it, what is in none, beside a server, without one, and of a broken directory."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from netserver.testing import server
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

KEY, NAME, VALUE = "hunter2-hunter2", "secret-topic-name", "the-value-of-a-record"


def parts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            assert entry.isfile()
            assert entry.name.startswith(f"{path.name.removesuffix('.tar.gz')}/")
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
    return found


@pytest.mark.usefixtures("own_process")
def test_beside_a_server(tmp_path: Path, logtool: Logtool) -> None:
    config, out, log = tmp_path / "quintlog.toml", tmp_path / "report.tar.gz", tmp_path / "server.log"
    config.write_text(f'[blipmq]\nallowed_api_keys = "{KEY}"\n[topics]\nretention_ms = "7d"\n')
    with server(tmp_path / "data", arguments=("--config", str(config))) as process:
        process.admin("POST", f"/v1/topics/{NAME}/records", {"records": [{"value": VALUE}]})
        log.write_text(f"an old line\n{'x' * (5 << 20)}\nlogin with {KEY} and {process.token}\n")
        place = ("--data-dir", str(process.data_dir), "-o", "json", "debug", "bundle", "-O", str(out))
        code, said, err = logtool(*place, "--log", str(log))
        assert (code, err) == (0, "")
        assert json.loads(said)["items"][0]["bytes"] == out.stat().st_size
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        found = parts(out)
        assert set(found) == {
            *("manifest.json", "config.toml", "status.json", "metrics.txt", "ready.txt", "process.txt"),
            *("topics.json", "segments.jsonl", "files.txt", "log.txt"),
        }
        for name, text in found.items():
            assert not any(word in text for word in (KEY, NAME, VALUE, process.token)), name
        assert found["log.txt"] == "login with (secret) and (secret)\n"
        code, _, err = logtool(*place)
        assert (code, f"{out} is there already" in err) == (6, True)
    assert json.loads(found["manifest.json"])["missing"] == {}
    assert 'retention = "7d"' in found["config.toml"]
    assert 'allowed_api_keys = "(set)"' in found["config.toml"]
    (topic,) = json.loads(found["topics.json"])["items"]
    assert (topic["name_bytes"], topic["partition_details"][0]["next_offset"]) == (len(NAME), 2)
    (segment,) = map(json.loads, found["segments.jsonl"].splitlines())
    assert (segment["committed"], segment["first"], segment["sealed"]) == (1, 1, False)
    assert "quintlog_ready 1.0" in found["metrics.txt"]
    assert found["ready.txt"] == "ready"
    assert "Max open files" in found["process.txt"]
    assert "topics/1/0/00000000000000000001.log" in found["files.txt"]


@pytest.mark.parametrize("damage", ["none", "VERSION", "state", "killed"])
def test_without_a_server(tmp_path: Path, logtool: Logtool, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is told, and the rest is there."""
    with server(tmp_path / "data") as process:
        process.admin("POST", f"/v1/topics/{NAME}/records", {"records": [{"value": VALUE}]})
        if damage == "killed":
            process.kill()
    if damage == "VERSION":
        (tmp_path / "data" / "VERSION").unlink()
    if damage == "state":
        (tmp_path / "data" / "state" / "data.mdb").write_bytes(b"nothing of the kind")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = logtool("--data-dir", "data", "debug", "bundle")
    assert code == 0
    assert "without log.txt: there is no journal here: name the server's log with --log FILE\n" in err
    (path,) = tmp_path.glob("quintlog-debug-*Z.tar.gz")
    found = parts(path)
    missing = json.loads(found["manifest.json"])["missing"]
    assert {"files.txt", "config.toml"} <= set(found)
    assert "no server" in missing["status.json"]
    assert ("segments.jsonl" in missing) == (damage == "VERSION")
    if damage == "state":
        assert "damage" in found["segments.jsonl"]


def test_what_is_refused(tmp_path: Path, logtool: Logtool) -> None:
    code, _, err = logtool("--data-dir", str(tmp_path / "x"), "debug", "bundle", "-O", str(tmp_path / "a.tar.gz"))
    assert (code, f"there is no directory {tmp_path}/x" in err) == (3, True)
    (tmp_path / "d").mkdir()
    code, _, err = logtool(
        "--data-dir", str(tmp_path / "d"), "debug", "bundle", "-O", str(tmp_path / "no" / "a.tar.gz")
    )
    assert (code, "no such file or directory" in err) == (3, True)

"""`logtool keys`: through a server, where they count at once, and on a key file."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path

import pytest

from netserver.blipmq import codec
from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool

pytestmark = pytest.mark.whole

OFF = {name: {"listen": "off"} for name in ("figg", "tank", "fujin", "reliably", "kafka")}


def accepts(address: tuple[str, int], key: str) -> bool:
    with Peer(address, login=False) as peer:
        peer.send(codec.hello(1) + codec.auth(2, key))
        answers = peer.frames(2)
    return answers[1].type == codec.FrameType.ACK


def test_on_a_file(tmp_path: Path, logtool: Logtool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    on_file = ("--file", str(path))
    assert logtool("keys", "list", *on_file)[0] == 3
    code, key, err = logtool("keys", "add", "all", *on_file)
    assert code == 0
    assert len(key.strip()) >= 40
    assert "SIGHUP" in err
    assert key.strip() not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert logtool("keys", "add", "all", *on_file)[0] == 6
    code, text, _ = logtool("keys", "add", "some", "--subscribe", "a.*", "--subscribe", "b", *on_file, "-o", "json")
    assert (code, json.loads(text)["items"][0]["name"]) == (0, "some")
    monkeypatch.setenv("QUINTLOG_BLIPMQ_KEY_FILE", str(path))
    items = json.loads(logtool("keys", "list", "-o", "json")[1])["items"]
    assert [(item["name"], item["publish"], item["subscribe"]) for item in items] == [
        ("all", ["*"], ["*"]), ("some", [], ["a.*", "b"]),
    ]  # fmt: skip
    assert "a.* b" in logtool("keys", "list")[1]
    assert logtool("keys", "rotate", "all")[0] == 0
    assert "key, previous key" in logtool("keys", "list")[1]
    assert logtool("keys", "revoke", "all")[0] == 2
    assert logtool("keys", "revoke", "none", "--yes")[0] == 5
    assert logtool("keys", "revoke", "all", "--yes")[0] == 0
    path.write_text("nonsense\n")
    code, _, err = logtool("keys", "list")
    assert code == 3
    assert "line 1" in err


def test_through_a_server(tmp_path: Path, logtool: Logtool) -> None:
    path = tmp_path / "keys"
    first = logtool("keys", "add", "first", "--file", str(path))[1].strip()
    settings = {**OFF, "blipmq": {"key_file": str(path), "allowed_api_keys": "in the clear"}}
    with server(tmp_path / "data", settings) as process:
        place = ("--data-dir", str(process.data_dir))
        address = process.address("blipmq")
        code, second, _ = logtool(*place, "keys", "add", "second", "--publish", "a", "--subscribe", "*")
        assert code == 0
        assert logtool(*place, "keys", "add", "second")[0] == 6
        for key in (first, second.strip(), "in the clear"):
            assert accepts(address, key)
        assert not accepts(address, "another")
        items = json.loads(logtool(*place, "keys", "list", "-o", "json")[1])["items"]
        assert [item["name"] for item in items] == ["first", "second"]
        with Peer(address, key=first) as kept, Peer(address, key=second.strip()) as lost:
            assert logtool(*place, "keys", "revoke", "second", "--yes", "-o", "json") == (
            0, '{"schema":1,"items":[{"revoked":"second"}]}\n', "",
        )  # fmt: skip
            assert lost.at_eof()
            assert kept.until_pong() == []
        assert not accepts(address, second.strip())
        assert logtool(*place, "keys", "revoke", "second", "--yes")[0] == 5
        with pytest.raises(urllib.error.HTTPError, match="400"):
            process.admin("POST", "/v1/keys", {"name": "x", "publish": "a"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            process.admin("POST", "/v1/keys", {})
        with pytest.raises(urllib.error.HTTPError, match="405"):
            process.admin("GET", "/v1/keys/first")
    code, _, err = logtool(*place, "keys", "list")
    assert code == 3
    assert "--file" in err


def test_a_server_without_a_key_file(tmp_path: Path, logtool: Logtool) -> None:
    with server(tmp_path / "data", OFF) as process:
        code, _, err = logtool("--data-dir", str(process.data_dir), "keys", "add", "x")
        assert code == 6
        assert "no access file" in err

"""API keys: configuration and key file, rights, reload, and what a wrong file says."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from netserver.access.access import Access
from netserver.access.identities import Identities
from netserver.access.key_file import add_identity, add_key, read_key_file, revoke_key
from netserver.access.rights import ANYBODY, Identity
from netserver.config.loading import build
from netserver.errors import ConfigError


def test_keys_in_clear() -> None:
    keys = Identities(["dev-key-1", "ключ"])
    assert not keys.is_open
    for key, name in (("dev-key-1", "allowed_api_keys[1]"), ("ключ", "allowed_api_keys[2]")):
        identity = keys.check(key)
        assert identity is not None
        assert identity.name == name
        assert identity.may_publish(b"anything")
        assert identity.may_subscribe(b"\xff")
    for wrong in ("", "dev-key-", "dev-key-12", "Dev-key-1", "\ud800"):
        assert keys.check(wrong) is None


def test_a_key_is_known_by_itself_and_not_by_its_place_or_name(tmp_path: Path) -> None:
    keys = Identities(["first", "second"])
    first, second = keys.check("first"), keys.check("second")
    assert first is not None
    assert second is not None
    keys.replace(Identities(["another", "first"]))
    moved = keys.current(first)
    assert moved is not None
    assert moved.name == "allowed_api_keys[2]"
    assert keys.current(second) is None, "another one is in its place"
    path = tmp_path / "keys"
    stolen = add_key(path, "billing")
    keys.replace(Identities([], path))
    thief = keys.check(stolen)
    assert thief is not None
    revoke_key(path, "billing")
    add_key(path, "billing")
    keys.replace(Identities([], path))
    assert keys.current(thief) is None, "another one has its name"


def test_without_keys_it_is_open() -> None:
    keys = Identities()
    assert keys.is_open
    assert keys.check("x") is None, "the caller decides whether anybody may come in"
    assert keys.current(ANYBODY) is ANYBODY


def test_an_empty_key_file_admits_nobody(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("")
    keys = Identities(path=path)
    assert not keys.is_open
    assert keys.current(ANYBODY) is None


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = add_key(path, "billing", publish=["orders.*", "audit"], subscribe=[])
    second = add_key(path, "reader", publish=[], subscribe=["*"])
    own = add_key(path, "own", key="correct horse battery staple")
    assert own == "correct horse battery staple"
    assert len(first) >= 43
    assert first != second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert not any(key in text for key in (first, second, own))
    keys = Identities(["clear-key"], path)
    billing, reader = keys.check(first), keys.check(second)
    assert billing is not None
    assert reader is not None
    assert (billing.name, reader.name) == ("billing", "reader")
    assert billing.may_publish(b"orders.eu.17")
    assert billing.may_publish(b"audit")
    assert not billing.may_publish(b"audit2")
    assert not billing.may_publish(b"my.orders.1")
    assert not billing.may_subscribe(b"orders.1")
    assert not reader.may_publish(b"x")
    assert reader.may_subscribe(b"line\nbreak")
    clear = keys.check("clear-key")
    assert clear is not None
    assert keys.check(first + "x") is None
    assert revoke_key(path, "billing")
    assert not revoke_key(path, "billing")
    assert [key.identity.name for key in read_key_file(path)] == ["reader", "own"]


def test_patterns() -> None:
    identity = Identity("n", publish=("a?c", "t[12]", "*.log"), subscribe=())
    assert [topic for topic in (b"abc", b"ac", b"t1", b"t3", b"x.log", b"x.logs") if identity.may_publish(topic)] == [
        b"abc", b"t1", b"x.log",
    ]  # fmt: skip


def test_reload(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = add_key(path, "first")
    keys = Identities([], path)
    identity = keys.check(first)
    assert identity is not None
    called: list[int] = []

    def listener() -> None:
        called.append(keys.generation)

    keys.listen(listener)
    revoke_key(path, "first")
    second = add_key(path, "second", publish=["p"])
    assert keys.check(first) is not None, "nothing changes before the reload"
    keys.replace(Identities([], path))
    assert called == [1]
    assert keys.check(first) is None
    assert keys.current(identity) is None
    holder = keys.check(second)
    assert holder is not None
    assert keys.current(holder) is holder
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="line 1"):
        Identities([], path)
    keys.forget(listener)
    keys.replace(Identities(["plain"]))
    assert keys.generation == 2
    assert called == [1]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "{}",
        '{"name": "", "salt": "00", "hash": "00"}',
        '{"name": "a", "salt": "' + "00" * 16 + '", "hash": "00"}',
        '{"name": "a", "salt": "zz", "hash": "' + "00" * 32 + '"}',
        '{"name": "a", "salt": "' + "00" * 16 + '", "hash": "' + "00" * 32 + '", "publish": "*"}',
        '{"name": "", "salt": "' + "00" * 16 + '", "hash": "' + "00" * 32 + '"}',
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# a comment\n\n{line}\n")
    with pytest.raises(ConfigError, match="line 3"):
        Identities(path=path)


def test_files_that_are_no_key_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Identities(path=tmp_path / "missing")
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError):
        Identities(path=path)
    path.write_bytes(b" " * (5 << 20))
    with pytest.raises(ConfigError, match="larger"):
        Identities(path=path)
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="line 1"):
        Identities(path=path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        Identities(path=tmp_path / "pipe")
    key = add_key(tmp_path / "double", "a")
    assert key
    line = (tmp_path / "double").read_text()
    (tmp_path / "double").write_text(line + line)
    with pytest.raises(ConfigError, match="second key"):
        Identities(path=tmp_path / "double")


def test_what_cannot_be_added(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add_key(path, "taken")
    with pytest.raises(ConfigError, match="taken"):
        add_key(path, "taken")
    with pytest.raises(ConfigError, match="short"):
        add_key(path, "short", key="dev-key-1")
    with pytest.raises(ConfigError, match="name"):
        add_key(path, "")


def test_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "our keys"
    command = f"`logtool keys add NAME --file '{path}'` makes it"
    with pytest.raises(ConfigError, match=re.escape(f"key file {path} is not there; {command}")):
        Identities((), path)


def test_the_start_counts_those_who_can_come_in(tmp_path: Path) -> None:
    path = tmp_path / "access"
    add_identity(path, {"name": "by key", "publish": ["*"], "subscribe": []})
    access = Access(build(("test", {"access": {"file": str(path)}})))
    nobody = "nobody: no identity of the file can be known here (by network, anyone)"
    assert access.who_may(["figg"]) == [f"who may: figg: {nobody}"]
    add_identity(path, {"name": "by network", "publish": ["*"], "subscribe": [], "networks": ["10.0.0.0/8"]})
    add_identity(path, {"name": "by certificate", "publish": ["*"], "subscribe": [], "certificates": ["CN=a"]})
    access = Access(build(("test", {"access": {"file": str(path)}})))
    assert access.who_may(["figg", "blipmq"]) == [
        "who may: figg: 1 identity, what its line says (by network, anyone)",
        "who may: blipmq: 2 identities, each what its line says (by network, key, anyone)",
    ]


def test_the_start_tells_of_keys_in_the_configuration(tmp_path: Path) -> None:
    everything = "who may: blipmq: whoever has a key of allowed_api_keys may do everything"
    keys = {"allowed_api_keys": "k"}
    assert Access(build(("test", {"blipmq": keys}))).who_may(["blipmq"]) == [f"{everything} (by network, key, anyone)"]
    path = tmp_path / "access"
    add_identity(path, {"name": "one", "publish": ["*"], "subscribe": [], "networks": ["10.0.0.0/8"]})
    access = Access(build(("test", {"blipmq": keys, "access": {"file": str(path)}})))
    assert access.who_may(["blipmq"]) == [f"{everything}; 1 identity, what its line says (by network, key, anyone)"]

"""The server's configuration: layers, units, messages, reload."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from netserver.config import sections as config
from netserver.config.loading import build, load, read_environment, read_file
from netserver.config.sections import ServerConfig, reloaded
from netserver.config.settings import Address, TextSetting
from netserver.errors import ConfigError

pytestmark = pytest.mark.whole


def test_defaults() -> None:
    made = build()
    assert {name: str(getattr(made, name).listen) for name in (*config.PROTOCOL_SECTIONS, "admin")} == {
        "figg": "127.0.0.1:8119",
        "reliably": "127.0.0.1:4001",
        "tank": "127.0.0.1:11011",
        "blipmq": "127.0.0.1:5555",
        "fujin": "127.0.0.1:4848",
        "admin": "127.0.0.1:9180",
    }
    assert made.engine.topic.durability == "always"
    assert made == ServerConfig()


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text(
        '[figg]\nlisten = "127.0.0.1:1"\n[tank]\nlisten = "127.0.0.1:2"\n[blipmq]\nlisten = "off"\n'
        '[topics]\nretention_ms = "7d"\nauto_create = false\n[server]\nconnections_max = 5\nlog_level = "debug"\n'
        '[engine]\nopen_files_max = 77\n[admin]\nhosts = ["a.example", "b.example"]\n'
    )
    environment = {"QUINTLOG_TANK_LISTEN": "127.0.0.1:3", "QUINTLOG_FIGG_LISTEN": "127.0.0.1:4", "HOME": "/"}
    made = load(path, environment, {"figg": {"listen": "[::1]:5"}})
    assert made.figg.listen == Address("::1", 5)
    assert made.tank.listen == Address("127.0.0.1", 3)
    assert made.blipmq.listen is None
    assert made.engine.topic.retention_ms == 7 * 86_400_000
    assert made.engine.auto_create is False
    assert made.engine.open_files_max == 77
    assert made.server.connections_max == 5
    assert made.server.log_level == "debug"
    assert made.admin.hosts == ("a.example", "b.example")
    assert load(None, {"QUINTLOG_ADMIN_HOSTS": "a.example, b.example"}, {}).admin.hosts == made.admin.hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fig]\n", r"fig.*did you mean figg\?"),
        ("[figg]\nlissten = 1\n", r"\[figg\] unknown setting 'lissten': did you mean listen\?"),
        ("figg = 1\n", r"figg is a section: write \[figg\]"),
        ("[figg]\nlisten = 8119\n", r"\[figg\] listen = '8119': expected HOST:PORT"),
        ('[figg]\nlisten = "::1:8119"\n', "in brackets"),
        ('[figg]\nlisten = "127.0.0.1:65536"\n', "expected HOST:PORT"),
        ("[figg]\nlisten = [1]\n", "expected a text"),
        ("[figg]\nlisten = {a = 1}\n", "expected a value, not a table"),
        ('[server]\nconnections_max = "many"\n', "expected a number"),
        ("[server]\nconnections_max = 0\n", "1 to 1000000"),
        ('[server]\npublish_share_bytes = "8 parsecs"\n', "expected a number with a unit"),
        ('[server]\nlog_level = "loud"\n', "debug or info"),
        ('[server]\ninsecure = "perhaps"\n', "true or false"),
        ('[topics]\ndurability = "sometimes"\n', "always or interval or never"),
        ("no toml", "configuration file"),
        ('[figg]\ntls_certificate = "a.pem"\n', "belong together"),
        ('[figg]\ntls_client_ca = "a.pem"\n', "tls_client_ca needs"),
        ('[figg]\nlisten = "0.0.0.0:8119"\n', r"\[figg\] listen = 0.0.0.0:8119 can be reached.*--insecure"),
        ('[admin]\nlisten = "0.0.0.0:1"\n', r"\[admin\].*--insecure"),
        ('[figg]\nlisten = "127.0.0.1:4001"\n', r"\[figg\] and \[reliably\] both listen on 127.0.0.1:4001"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path, {}, {})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_file(tmp_path / "none.toml")


def test_exposed_listeners_need_protection_or_consent() -> None:
    outside = ("test", {"figg": {"listen": "0.0.0.0:8119"}})
    assert build(outside, ("test", {"server": {"insecure": True}})).figg.listen == Address("0.0.0.0", 8119)
    tls = {"tls_certificate": "a.pem", "tls_key": "a.key"}
    assert build(outside, ("test", {"figg": tls | {"tls_client_ca": "ca.pem"}})).ways_of("figg") == ("certificate",)
    assert build(outside, ("test", {"access": {"file": "keys"}})).ways_of("figg") == ("network", "anyone")
    for encrypted in ({"figg": tls}, {"fujin": {"listen": "0.0.0.0:4848"}, "figg": {"listen": "off"}}):
        with pytest.raises(ConfigError, match="can be reached from other machines"):  # by anybody, if in secret
            build(outside, ("test", encrypted))
    only_blipmq = {"blipmq": {"key_file": "keys"}}
    with pytest.raises(ConfigError, match=r"\[figg\] listen"):
        build(outside, ("test", only_blipmq))
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        assert Address(host, 1).is_loopback
    for host in ("0.0.0.0", "::", "192.0.2.1", "127.0.0.1.example", "localhost.example"):
        assert not Address(host, 1).is_loopback


def test_free_ports_and_udp_may_coincide() -> None:
    build(("test", {"figg": {"listen": "127.0.0.1:0"}, "tank": {"listen": "127.0.0.1:0"}}))
    build(("test", {"figg": {"listen": "127.0.0.1:4848"}}))


class TestEnvironment:
    def test_misspelt_names_are_errors(self) -> None:
        with pytest.raises(ConfigError, match=r"QUINTLOG_FIGG_LISTN.*did you mean QUINTLOG_FIGG_LISTEN\?"):
            read_environment({"QUINTLOG_FIGG_LISTN": "x"})
        with pytest.raises(ConfigError, match=r"QUINTLOG_FIG_LISTEN.*did you mean QUINTLOG_FIGG_LISTEN\?"):
            read_environment({"QUINTLOG_FIG_LISTEN": "x"})
        with pytest.raises(ConfigError, match=r"\[figg\] has listen"):
            read_environment({"QUINTLOG_FIGG_COLOUR": "x"})
        with pytest.raises(ConfigError, match=r"\[server\] has data_dir"):
            read_environment({"QUINTLOG_SERVER_COLOUR": "x"})

    def test_names_of_other_tools_are_left_alone(self) -> None:
        others = ("PURE", "BUILD", "NIGHTLY", "REQUIRE_COMPILED", "SERVER", "TOKEN_FILE", "OUTPUT", "TIMEOUT", "CONFIG")
        assert read_environment({f"QUINTLOG_{name}": "x" for name in others}) == {}

    def test_data_dir_has_a_short_name(self) -> None:
        assert read_environment({"QUINTLOG_DATA_DIR": "/d"}) == {"server": {"data_dir": "/d"}}
        assert read_environment({"QUINTLOG_SERVER_DATA_DIR": "/d"}) == {"server": {"data_dir": "/d"}}

    def test_values_from_files(self, tmp_path: Path) -> None:
        (tmp_path / "value").write_text("127.0.0.1:7\n")
        assert read_environment({"QUINTLOG_FIGG_LISTEN_FILE": str(tmp_path / "value")}) == {
            "figg": {"listen": "127.0.0.1:7"}
        }
        with pytest.raises(ConfigError, match=r"QUINTLOG_FIGG_LISTEN_FILE.*No such file"):
            read_environment({"QUINTLOG_FIGG_LISTEN_FILE": str(tmp_path / "none")})


def test_printed_configuration_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    made = build(
        ("test", {"topics": {"retention_ms": "36h", "auto_create": False}, "figg": {"listen": "off"}}),
        ("test", {"server": {"data_dir": 'C:\\odd "name"'}, "admin": {"hosts": ["a", "b"]}}),
    )
    path = tmp_path / "printed.toml"
    path.write_text(config.as_toml(made))
    assert load(path, {}, {}) == made
    assert set(tomllib.loads(path.read_text())) == set(config.sections())


def test_secrets_are_not_shown() -> None:
    how = TextSetting("list", secret=True)
    assert how.text(("a", "b")) == "(set)"
    assert how.text(()) == ""


def test_reload_takes_what_can_change_and_names_the_rest() -> None:
    old = build()
    new = build(
        (
            "test",
            {
                "server": {"log_level": "debug", "connections_max": 7, "log_format": "json"},
                "topics": {"retention_ms": "1d", "auto_create": False},
                "engine": {"topics_max": 9, "open_files_max": 99},
                "figg": {"listen": "off"},
            },
        )
    )
    assert set(config.changes(old, new)) == {
        "server.log_level",
        "server.connections_max",
        "server.log_format",
        "topics.retention_ms",
        "topics.auto_create",
        "engine.topics_max",
        "engine.open_files_max",
        "figg.listen",
    }
    merged = reloaded(old, new)
    left = {"server.log_format", "engine.open_files_max", "figg.listen"}
    assert set(config.changes(merged, new)) == left
    assert not left & config.RELOADABLE
    assert reloaded(old, old) == old


def test_every_reloadable_setting_exists() -> None:
    known = {f"{section}.{name}" for section, its in config.sections().items() for name in its}
    assert known >= config.RELOADABLE


def test_every_setting_has_a_help_text() -> None:
    for section, its in config.sections().items():
        for name, how in its.items():
            assert how.help.endswith((".", ")")), f"{section}.{name}"


def test_sections_are_plain_frozen_objects() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        build().server.log_level = "x"  # type: ignore[misc]

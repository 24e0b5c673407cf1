"""The server's configuration: layers, units, messages, reload."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from netserver.config.loading import build, load, read_environment, read_file
from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from netserver.config.settings import Address, TextSetting
from netserver.config.table import RELOADABLE, SECTIONS, TABLE, as_toml, changes, reloaded
from netserver.errors import ConfigError

pytestmark = pytest.mark.whole


def test_defaults() -> None:
    made = build()
    assert {name: str(getattr(made, name).listen) for name in (*PROTOCOL_SECTIONS, "admin")} == {
        "figg": "127.0.0.1:8119",
        "reliably": "127.0.0.1:4001",
        "tank": "127.0.0.1:11011",
        "blipmq": "127.0.0.1:5555",
        "fujin": "127.0.0.1:4848",
        "kafka": "127.0.0.1:9092",
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
    path.write_text(as_toml(made))
    assert load(path, {}, {}) == made
    assert set(tomllib.loads(path.read_text())) == set(SECTIONS)


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
    assert set(changes(old, new)) == {
        "server.log_level",
        "server.connections_max",
        "server.log_format",
        "topics.retention",
        "topics.auto_create",
        "engine.topics_max",
        "engine.open_files_max",
        "figg.listen",
    }
    merged = reloaded(old, new)
    left = {"server.log_format", "engine.open_files_max", "figg.listen"}
    assert set(changes(merged, new)) == left
    assert not left & RELOADABLE
    assert reloaded(old, old) == old


def test_every_reloadable_setting_exists() -> None:
    assert {entry.title for entry in TABLE} >= RELOADABLE


def test_every_setting_has_a_help_text() -> None:
    for entry in TABLE:
        assert entry.how.help.endswith((".", ")")), entry.title


def test_sections_are_plain_frozen_objects() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        build().server.log_level = "x"  # type: ignore[misc]


def of_file(tmp_path: Path, text: str) -> ServerConfig:
    """What a file means."""
    path = tmp_path / "quintlog.toml"
    path.write_text(text)
    return load(path, {}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[topics]\nretention_ms = "7d"\n', 'line 2: [topics] retention_ms .* now: retention = "7d"'),
        ("[topics]\nretention_ms = 604800000\n", 'retention_ms .* now: retention = "7d"'),
        ("[fujin]\nfetch_wait = 250\n", 'line 2: [fujin] fetch_wait .* now: fetch_wait = "250ms"'),
        ('[topics]\nauto_create = "yes"\n', "auto_create .* now: auto_create = true"),
        ('[engine]\nsync_threads = "4"\n', "sync_threads .* now: sync_threads = 4"),
        ('[admin]\nhosts = "a, b"\n', 'hosts .* now: hosts = ["a", "b"]'),
        ('[fujin]\nwriters = "{ w = { topic = \'t\' } }"\n', 'now: writers = { "w" = { "topic" = "t" } }'),
        ('[blipmq]\nport = 1234\n', 'bind_addr and port .* now: listen = "127.0.0.1:1234"'),
        ('[blipmq]\nwal_path = "x"\n', "line 2: [blipmq] wal_path has no effect: remove it; see [server] data_dir"),
        ('[blipmq]\nallowed_api_keys = "secret"\n', "now: allowed_api_keys = [...]"),
    ],
)  # fmt: skip
def test_old_ways_are_taken_and_the_new_line_is_told(tmp_path: Path, text: str, said: str) -> None:
    (warning,) = of_file(tmp_path, text).warnings
    assert re.search(".*".join(map(re.escape, said.split(" .* "))), warning), warning
    if "now: " in said and "..." not in said:
        section, line = text.split("\n")[0], warning.partition("now: ")[2]
        again = of_file(tmp_path, f"{section}\n{line}\n")
        assert again.warnings == ()
        assert again == of_file(tmp_path, text)


def test_what_is_written_as_it_should_be_is_not_warned_of(tmp_path: Path) -> None:
    text = (
        '[topics]\nretention = 0\nsync_interval = "500ms"\nsegment_bytes = "64MiB"\nretention_bytes = 4096\n'
        'auto_create = false\n[engine]\nsync_threads = 4\n[admin]\nhosts = ["a"]\n[fujin.writers.w]\ntopic = "t"\n'
    )
    assert of_file(tmp_path, text).warnings == ()


def test_old_names_in_the_environment() -> None:
    made = load(None, {"QUINTLOG_TOPICS_RETENTION_MS": "7d"}, {})
    assert made.engine.topic.retention_ms == 7 * 86_400_000
    (warning,) = made.warnings
    assert warning.endswith("now: QUINTLOG_TOPICS_RETENTION=7d")
    assert load(None, {"QUINTLOG_TOPICS_RETENTION": "7d"}, {}).warnings == ()


def test_one_setting_under_two_names_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 3: \[topics\] retention_ms is retention once more"):
        of_file(tmp_path, '[topics]\nretention = "7d"\nretention_ms = "8d"\n')


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text(
        '[fig]\n[figg]\nlissten = 1\n[reliably]\nlisten = "127.0.0.1:1"\n[tank]\nlisten = "127.0.0.1:1"\n'
        'clients = ["nobody", "key"]\n[topics]\nretention = "7q"\n[console]\nbase_path = "x"\n'
        '[admin]\nlisten = "localhost:1"\n[fujin]\nstart = "soon"\nlisten = "127.0.0.1:1"\n'
    )
    with pytest.raises(ConfigError) as raised:
        load(path, {"QUINTLOG_FIGG_LISTN": "x", "QUINTLOG_BLIPMQ_PORT": "70000"}, {"server": {"log_level": "loud"}})
    lines = [line.strip().removeprefix(f"{path}: ") for line in str(raised.value).splitlines()]
    for begin in (
        "line 1: unknown section 'fig'",
        "line 3: [figg] unknown setting 'lissten'", "line 10: [topics] retention = '7q'",
        "environment variable QUINTLOG_FIGG_LISTN", "command line: [server] log_level", "start = 'soon'",
        "environment: [blipmq] bind_addr and port: expected", "[tank] clients: no way 'nobody'",
        "[tank] clients = key: the protocol", "[tank] clients = nobody, key needs", "[console] base_path",
        "[reliably] and [tank] both listen on 127.0.0.1:1:", "[reliably] and [admin] both listen on 127.0.0.1:1 and",
        "[tank] and [admin] both listen on 127.0.0.1:1 and localhost:1",
    ):  # fmt: skip
        assert sum(line.startswith(begin) for line in lines) == 1, (begin, lines)
    assert len(lines) == 14, lines


def test_an_address_for_everybody_collides_with_one_of_them() -> None:
    safe = {"server": {"insecure": True}}
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:1 and 127\.0\.0\.1:1, which is the same port"):
        build(("test", safe | {"figg": {"listen": "0.0.0.0:1"}, "tank": {"listen": "127.0.0.1:1"}}))
    build(("test", safe | {"figg": {"listen": "0.0.0.0:1"}, "tank": {"listen": "[::1]:1"}}))


def test_nothing_that_listens_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing listens: give one of"):
        load(None, {}, {name: {"listen": "off"} for name in (*PROTOCOL_SECTIONS, "admin")})


def test_ports_are_moved_but_for_those_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text('[tank]\nlisten = "off"\n[blipmq]\nlisten = "127.0.0.1:0"\n')
    made = load(path, {}, {"figg": {"listen": "127.0.0.1:7"}}, 1000)
    assert [str(getattr(made, name).listen) for name in ("figg", "reliably", "tank", "blipmq", "admin")] == [
        "127.0.0.1:7", "127.0.0.1:5001", "None", "127.0.0.1:0", "127.0.0.1:10180"
    ]  # fmt: skip
    free = load(path, {}, {"figg": {"listen": "127.0.0.1:7"}}, "auto")
    assert [getattr(free, name).listen.port for name in ("figg", "reliably", "fujin", "admin")] == [7, 0, 0, 0]
    with pytest.raises(ConfigError, match=r"\[admin\] listen = 127.0.0.1:9180 moved by 60000 has no port"):
        load(None, {}, {}, 60000)


def test_the_print_says_where_each_value_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text('[topics]\nretention = "7d"\n[blipmq]\nallowed_api_keys = ["secret"]\n')
    made = load(path, {"QUINTLOG_ENGINE_SYNC_THREADS": "4"}, {"admin": {"listen": "off"}})
    lines = as_toml(made).splitlines()
    for line in (
        f'retention = "7d"  # file {path}: line 2; reload',
        "sync_threads = 4  # environment QUINTLOG_ENGINE_SYNC_THREADS; restart",
        'listen = "off"  # command line; restart',
        "retention_bytes = 0  # default; reload",
        f'# allowed_api_keys = "(set)"  # file {path}: line 4; reload',
    ):
        assert line in lines
    assert "secret" not in as_toml(made)


def test_every_setting_can_be_written_as_it_is_printed() -> None:
    defaults = ServerConfig()
    for entry in TABLE:
        assert entry.how.parse(entry.native(defaults)) == entry.value(defaults), entry.title
        assert not entry.name.endswith("_ms")

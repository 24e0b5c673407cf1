"""Settings of the Fujin listener: tables of names, starts, what must be refused, what a reload changes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from netserver import figg, fujin
from netserver.admin.api import Api
from netserver.config import loading as config_reading
from netserver.config.fujin import FujinReader, FujinWriter, parse_start
from netserver.config.sections import ServerConfig
from netserver.config.table import as_toml
from netserver.errors import ConfigError
from netserver.testing import running
from tests.echo import run

OFF = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}


def of_file(tmp_path: Path, text: str) -> ServerConfig:
    path = tmp_path / "quintlog.toml"
    path.write_text(text)
    return config_reading.load(path, {}, {})


def test_tables_in_the_file(tmp_path: Path) -> None:
    config = of_file(
        tmp_path,
        """
        [fujin]
        group = "workers"
        [fujin.writers.pub]
        topic = "orders"
        [fujin.readers.sub]
        topic = "orders"
        [fujin.readers."odd name, = {}"]
        topic = 'or"ders'
        group = "audit"
        start = "@2026-11-27T10:00Z"
        fetch_empty = "zero"
        """,
    )
    assert config.fujin.writers == (("pub", FujinWriter("orders")),)
    assert config.fujin.readers == (
        ("sub", FujinReader("orders")),
        ("odd name, = {}", FujinReader('or"ders', "audit", "@2026-11-27T10:00Z", "zero")),
    )
    printed = as_toml(config)
    assert config_reading.build(("printed", tomllib.loads(printed))).fujin == config.fujin, (
        "what is printed can be read"
    )


def test_tables_in_the_environment() -> None:
    environment = {"QUINTLOG_FUJIN_READERS": '{ sub = { topic = "orders", group = "g" } }'}
    config = config_reading.load(None, environment, {})
    assert config.fujin.readers == (("sub", FujinReader("orders", "g")),)
    assert config_reading.load(None, {"QUINTLOG_FUJIN_READERS": ""}, {}).fujin.readers == ()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"readers": {"sub": {"topics": "t"}}}, r"sub: unknown setting 'topics'.*topic"),
        ({"readers": {"sub": "orders"}}, "sub: expected a table"),
        ({"readers": "sub = orders"}, "expected an inline table of TOML"),
        ({"readers": "{ sub = { topic = 'a' }"}, "expected an inline table of TOML"),
        ({"readers": ["a"]}, "expected a table"),
        ({"readers": {"sub": {"start": "yesterday"}}}, "start = 'yesterday'"),
        ({"readers": {"sub": {"fetch_empty": "maybe"}}}, "fetch_empty = 'maybe'"),
        ({"readers": {"sub": {"group": "g" * 1025}}}, "a group has a name of 1 to 1024 bytes"),
        ({"group": ""}, "a group has a name of 1 to 1024 bytes"),
        ({"start": "@never"}, "start = '@never'"),
        ({"tls_certificate": "c"}, "belong together"),
        ({"message_bytes_max": "251MiB"}, "message_bytes_max"),
        ({"ping_interval": {"a": 1}}, "expected a value, not a table"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config_reading.build(("test", {"fujin": settings}))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("oldest", "oldest"),
        ("newest", "newest"),
        ("17", 17),
        ("@1795822592", 1795822592.0),
        ("@1795822592.5", 1795822592.5),
        ("@2026-11-27T10:00Z", 1795773600.0),
        ("@2026-11-27T10:00", 1795773600.0),
        ("@2026-11-27T11:00+01:00", 1795773600.0),
    ],
)
def test_starts(text: str, start: object) -> None:
    assert parse_start(text) == start


def test_a_listener_without_a_certificate_stops_the_start_only_when_it_is_alone(tmp_path: Path) -> None:
    missing = {"tls_certificate": str(tmp_path / "missing.pem"), "tls_key": str(tmp_path / "missing.key")}

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"missing\.pem"):
            async with running(settings={**OFF, "fujin": missing}):
                pytest.fail("it has started")

    run("asyncio", main())


def test_the_others_serve_when_a_certificate_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").mkdir()
    for name in ("certificate", "key"):
        (tmp_path / "data" / f"fujin-{name}.pem").write_text("damaged")
    missing = {"tls_certificate": str(tmp_path / "missing.pem"), "tls_key": str(tmp_path / "missing.key")}
    (tmp_path / "data" / "VERSION").write_text('{"format": 1, "id": 1}')

    async def main() -> None:
        async with running(tmp_path / "data", {"tank": missing}) as server:
            assert {*server.listeners} == {"figg", "reliably", "blipmq", "kafka"}
            assert {*server.failed} == {"fujin", "tank"}
            async with figg.connect(str(server.addresses["figg"])) as client:
                await client.publish("t", b"it serves")
            server.reload(server.config)
            status = await Api(server).status()
            assert "missing.pem" in status["failed_listeners"]["tank"]
            assert "fujin-key.pem" in status["failed_listeners"]["fujin"]

    run("asyncio", main())
    assert caplog.text.count("does not listen") == 2


def test_a_reload_changes_what_streams_opened_later_get() -> None:
    async def main() -> None:
        async with (
            running(settings=OFF) as server,
            fujin.connect(str(server.addresses["fujin"]), verify=False) as client,
        ):
            await client.publish("pub", b"to pub")
            config = config_reading.build(
                ("old", {"server": {"data_dir": server.config.server.data_dir}, **OFF}),
                (
                    "new",
                    {
                        "fujin": {
                            "listen": str(server.addresses["fujin"]),
                            "writers": {"pub": {"topic": "orders"}},
                            "readers": {"sub": {"topic": "orders"}},
                            "streams_max": 5,
                        },
                        "admin": {"listen": str(server.admin_address)},
                    },
                ),
            )
            left = server.reload(config)
            assert "fujin.streams_max" in left
            assert "fujin.writers" not in left
            async with client.transaction() as tx:
                await tx.publish("pub", b"to orders")
            assert (await client.subscribe("sub", ack="auto").next(5)).value == b"to orders"

    run("asyncio", main())

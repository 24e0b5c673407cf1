"""`config`: show and check the server's configuration, and have a running server read it again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from netserver.config import loading as config_reading
from netserver.config.sections import ServerConfig
from netserver.config.settings import toml_text
from netserver.config.table import DEFAULT, TABLE
from netserver.errors import ConfigError
from tools.logtool.check import figures
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column

COLUMNS = (
    Column("section"),
    Column("setting"),
    Column("value", show=lambda value: value if isinstance(value, str) else toml_text(value)),
    Column("restart", show=lambda need: "yes" if need else ""),
    Column("origin"),
)
POLL_S = 0.02

_FILE = click.option(
    "--config",
    "path",
    metavar="FILE",
    envvar="QUINTLOG_CONFIG",
    type=click.Path(path_type=Path),
    help="TOML file [QUINTLOG_CONFIG].",
)


@click.group(cls=Group)
def config() -> None:
    """Show and check the server's configuration, and have it read again."""


def loaded(settings: Settings, path: Path | None) -> ServerConfig:
    """What a server would start with. Raises Failure: it is not valid."""
    own = {"QUINTLOG_DATA_DIR"}  # the tools' address, which is not what is asked for here
    environment = {name: text for name, text in settings.environment.items() if name not in own}
    try:
        return config_reading.load(path, environment, {})
    except ConfigError as error:
        raise Failure(errors.USAGE, "config", str(error), "docs/configuration.md has every setting") from error


@config.command()
@_FILE
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
@click.pass_obj
def show(settings: Settings, path: Path | None, changed: bool) -> None:
    """Show what a server would start with: defaults, the FILE, and QUINTLOG_SECTION_KEY of the environment."""
    defaults, found = ServerConfig(), loaded(settings, path)
    items: list[dict[str, Any]] = [
        {
            "section": entry.section,
            "setting": entry.name,
            "value": entry.native(found),
            "restart": not entry.is_reloadable,
            "origin": found.origins.get(entry.title, DEFAULT),
        }
        for entry in TABLE
        if not changed or entry.value(found) != entry.value(defaults)
    ]
    settings.output.items(COLUMNS, items)


@config.command()
@_FILE
@click.pass_obj
def check(settings: Settings, path: Path | None) -> None:
    """Check a configuration without starting anything; each error names its line and what is expected."""
    for warning in loaded(settings, path).warnings:
        settings.output.note(f"logtool: warning: {warning}")
    if settings.output.form == "table":
        settings.output.note("the configuration is valid")
    else:
        settings.output.items([Column("valid")], [{"valid": True}])


@config.command("reload")
@click.pass_obj
def reload(settings: Settings) -> None:
    """Have the running server read its configuration again and wait for the outcome, as SIGHUP does.

    All or nothing: with an error the server goes on as before and its log says why. What needs a restart stays as it
    is; `config show` marks it.
    """
    admin = need_admin(settings)
    before = figures(admin.text("/metrics"))
    admin.call("POST", "/v1/reload")
    deadline = time.monotonic() + settings.timeout_s
    while time.monotonic() < deadline:
        now = figures(admin.text("/metrics"))
        if now["config_reload_time_seconds"] != before["config_reload_time_seconds"]:
            later = admin.call("GET", "/v1/status").get("restart_needed", [])
            if settings.output.form == "table":
                also = f"; a restart is needed for {', '.join(later)}" if later else ""
                settings.output.note(f"reloaded{also}")
            else:
                item = {"reloaded": True, "restart_needed": later}
                settings.output.items([Column(key) for key in item], [item])
            return
        if before["config_reload_success"] and not now["config_reload_success"]:
            break
        time.sleep(POLL_S)
    text = "the server did not take it over; nothing changed"
    raise Failure(errors.USAGE, "config", text, "its log says why; `logtool config check --config FILE` as well")

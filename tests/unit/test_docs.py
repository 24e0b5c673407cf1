"""The reference pages name every command, option and setting that there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from engine.config import EngineConfig
from engine.limits import PARTITIONS_PER_TOPIC_MAX, RECORD_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from netserver.config.sections import ServerConfig, as_toml
from netserver.figg.limits import TOPIC_BYTES_MAX as FIGG_TOPIC_BYTES_MAX
from netserver.tank.limits import TOPIC_NAME_BYTES_MAX as TANK_TOPIC_BYTES_MAX
from tools.engine_server import main as engine_server
from tools.logtool.cli import COMMANDS, root

pytestmark = pytest.mark.whole

DOCS = Path(__file__).resolve().parents[2] / "docs"


def options_of(command: click.Command) -> set[str]:
    return {name for param in command.params if isinstance(param, click.Option) for name in param.opts}


def commands() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    with click.Context(root) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found += [(f"{name} {inner}", command.commands[inner]) for inner in command.commands]
            else:
                found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_logtool_page_names_every_option(name: str, command: click.Command) -> None:
    page = (DOCS / "logtool.md").read_text()
    assert re.search(rf"(^## {name}\b)|(`{name}[ `])", page, re.MULTILINE)
    missing = {option for option in options_of(command) if f"`{option}" not in page and f" {option}" not in page}
    assert missing == set()


def test_engine_server_page_names_every_option() -> None:
    page = (DOCS / "engine-server.md").read_text()
    assert {option for option in options_of(engine_server) if f"`{option}" not in page} == set()


def test_configuration_page_is_what_the_server_prints() -> None:
    """To renew it: engine-server --print-config, between the two lines with three backquotes."""
    page = (DOCS / "configuration.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block.strip() == as_toml(ServerConfig()).strip()


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_limits_of_the_readme_are_those_of_the_code() -> None:
    readme, config = (DOCS.parent / "README.md").read_text(), EngineConfig()
    for row in (
        f"{config.topic.record_bytes_max >> 20} MiB by default (`record_bytes_max`), at most {RECORD_BYTES_MAX >> 20}",
        f"any {TOPIC_NAME_BYTES_MAX:,} bytes; through Figg {FIGG_TOPIC_BYTES_MAX}, through TANK {TANK_TOPIC_BYTES_MAX}",
        f"{PARTITIONS_PER_TOPIC_MAX:,}, all topics together {config.partitions_max:,} by default (`partitions_max`)",
        f"{config.topics_max:,} by default (`topics_max`)",
    ):
        assert f" {row}" in readme


def test_every_test_that_holds_a_guarantee_exists() -> None:
    named = re.findall(r"tests/[\w/]+(?:\.py)?", (DOCS / "guarantees.md").read_text())
    assert len(named) > 5
    assert [path for path in named if not (DOCS.parent / path).exists()] == []

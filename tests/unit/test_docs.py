"""The reference pages name every command, option and setting that there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import engine
import netserver
import tools
from engine.config import EngineConfig
from engine.limits import PARTITIONS_PER_TOPIC_MAX, RECORD_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from netserver.config.sections import ServerConfig
from netserver.config.table import as_toml
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


PARTS = tuple(Path(str(package.__file__)).parent for package in (engine, netserver, tools))


def named_in_architecture() -> set[str]:
    """What stands in backticks, and the folders of the picture."""
    text = (DOCS / "architecture.md").read_text()
    picture, prose = text.split("```")[1], "".join(text.split("```")[::2])
    return {*re.findall(r"`([^`\s]+)`", prose), *re.findall(r"\b\w+/(?=[\s:])", picture)}


def test_the_files_that_the_architecture_names_are_there() -> None:
    files = [name for name in named_in_architecture() if "/" in name]
    assert len(files) > 20
    roots = [*PARTS, *(part.parent for part in PARTS), DOCS.parent]
    missing = [
        name for name in files if not any(list(root.glob(name.strip("/").replace("<protocol>", "*"))) for root in roots)
    ]
    assert not missing


def test_the_names_of_the_architecture_are_in_the_code() -> None:
    names = {
        part
        for name in named_in_architecture()
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not name.endswith((".py", ".md"))
        for part in name.split(".")
    }
    assert {"EngineContext", "appended", "sync_lock"} <= names
    code = " ".join(path.read_text() for part in PARTS for path in part.rglob("*.py"))
    words = set(re.findall(r"\w+", code)) | {path.stem for part in PARTS for path in part.rglob("*.py")}
    assert names - words == {"x_pure"} & names


def test_the_architecture_names_every_package() -> None:
    text = (DOCS / "architecture.md").read_text().split("```")[1]
    packages = {path.parent.name for part in PARTS[:2] for path in part.glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in text} == set()

"""Reads the server's configuration: defaults < TOML file < environment < flags.

The file has one table per section below::

    [server]
    data_dir = "/var/lib/quintlog"
    [figg]
    listen = "127.0.0.1:8119"        # or "off"
    [topics]
    retention_ms = "7d"              # defaults of topics that have no setting of their own

The environment names the same settings ``QUINTLOG_SECTION_KEY`` (``QUINTLOG_TOPICS_RETENTION_MS=7d``); with ``_FILE``
after it the value is read from that file, which suits secrets. Sizes and durations take units. An unknown setting is
an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.config import EngineConfig, TopicConfig, unknown_setting_text
from engine.errors import InvalidConfig
from netserver.config.clients import AccessSection
from netserver.config.console import ConsoleSection
from netserver.config.lines import line_of
from netserver.config.sections import (
    MAKING_TOPICS,
    PROTOCOL_SECTIONS,
    AdminSection,
    ServerConfig,
    ServerSection,
    sections,
)
from netserver.config.settings import parse_value
from netserver.errors import ConfigError
from netserver.limits import CONFIG_FILE_BYTES_MAX

ENVIRONMENT_PREFIX: Final = "QUINTLOG_"
Layer = Mapping[str, Mapping[str, Any]]
"""Settings of one source: section -> name -> text."""


def read_file(path: Path) -> Layer:
    """The settings of a TOML file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has an unknown section.
    """
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(content) > CONFIG_FILE_BYTES_MAX:
            raise ConfigError(f"configuration file {path}: larger than {CONFIG_FILE_BYTES_MAX} bytes")
        text = content.decode("utf-8")
        document = tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise ConfigError(f"configuration file {path}: nested too deeply") from None
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from None
    known = sections()
    for name, table in document.items():
        if name not in known:
            where = _place(str(path), text, name)
            raise ConfigError(f"{where}: {unknown_setting_text(name, known).replace('setting', 'section')}")
        if not isinstance(table, dict):
            raise ConfigError(
                f"{_place(str(path), text, name)}: {name} is a section: write [{name}] and its settings below it"
            )
    return document


def _place(source: str, text: str, section: str, name: str = "") -> str:
    """``FILE: line N`` of a setting or section; the file alone when it is written in an unusual way."""
    line = line_of(text, section, name)
    return f"{source}: line {line}" if line else source


def read_environment(environment: Mapping[str, str]) -> Layer:
    """The settings of ``QUINTLOG_SECTION_KEY`` variables; others with that prefix belong to other tools of ours.

    Raises:
        ConfigError: a variable of a known section names no setting, looks like a misspelling, or its file is missing.
    """
    known = sections()
    names = {
        f"{ENVIRONMENT_PREFIX}{section}_{name}".upper(): (section, name)
        for section, its in known.items()
        for name in its
    }
    names[f"{ENVIRONMENT_PREFIX}DATA_DIR"] = ("server", "data_dir")
    found: dict[str, dict[str, Any]] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        base = variable
        if variable not in names and variable.endswith("_FILE"):
            base = variable.removesuffix("_FILE")
        if base not in names:
            near = difflib.get_close_matches(variable, names, n=1, cutoff=0.85)
            section, has_key, _ = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
            if near or (has_key and section in known):
                hint = f"did you mean {near[0]}?" if near else f"[{section}] has {', '.join(known[section])}"
                raise ConfigError(f"environment variable {variable}: no such setting; {hint}")
            continue
        if base != variable:
            try:
                text = Path(text).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"environment variable {variable}: {error}") from None
        section, name = names[base]
        found.setdefault(section, {})[name] = text
    return found


def _source(source: str, section: str, name: str) -> str:
    """Where a setting came from: a file with its line, else the name of the layer."""
    try:
        return _place(source, Path(source).read_text("utf-8"), section, name)
    except (OSError, UnicodeDecodeError):  # environment, command line
        return source


def build(*layers: tuple[str, Layer]) -> ServerConfig:
    """The configuration of the given layers, later ones first in rank.

    Args:
        layers: (name of the source for messages, its settings).

    Raises:
        ConfigError: names source, section and setting.
    """
    known = sections()
    values: dict[str, dict[str, Any]] = {name: {} for name in known}
    origins: dict[str, str] = {}
    for source, layer in layers:
        for section, table in layer.items():
            for name, text in table.items():
                origins[f"{section}.{name}"] = source
                try:
                    values[section][name] = parse_value(known[section], name, text)
                except ConfigError as error:
                    raise ConfigError(f"{_source(source, section, name)}: [{section}] {error}") from None
    making = {name: values["topics"].pop(name) for name in MAKING_TOPICS if name in values["topics"]}
    try:
        engine = EngineConfig(topic=TopicConfig(**values["topics"]), **values["engine"], **making)
    except InvalidConfig as error:
        raise ConfigError(str(error)) from None
    config = ServerConfig(
        server=ServerSection(**values["server"]),
        engine=engine,
        admin=AdminSection(**values["admin"]),
        console=ConsoleSection(**values["console"]),
        access=AccessSection(**values["access"]),
        origins=origins,
        **{name: kind(**values[name]) for name, kind in PROTOCOL_SECTIONS.items()},  # type: ignore[arg-type]
    )
    config.check()
    return config


def load(path: Path | None, environment: Mapping[str, str], flags: Layer) -> ServerConfig:
    """The configuration of a server start.

    Raises:
        ConfigError: see ``build``.
    """
    layers = [("environment", read_environment(environment)), ("command line", flags)]
    if path is not None:
        layers.insert(0, (str(path), read_file(path)))
    return build(*layers)

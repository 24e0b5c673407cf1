"""Reads the server's configuration: defaults < TOML file < environment < flags.

The file has one table per section below::

    [server]
    data_dir = "/var/lib/quintlog"
    [figg]
    listen = "127.0.0.1:8119"        # or "off"
    [topics]
    retention = "7d"                 # defaults of topics that have no setting of their own

The environment names the same settings ``QUINTLOG_SECTION_KEY`` (``QUINTLOG_TOPICS_RETENTION=7d``); with ``_FILE``
after it the value is read from that file, which suits secrets. Sizes and durations have units. All that is wrong is
told at once; an unknown setting is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netserver.config.blipmq import ADDRESS_PARTS, WITHOUT_EFFECT
from netserver.config.ports import Ports
from netserver.config.reading import COMMAND_LINE, ENVIRONMENT, NAMES, Layer, Reading, Source
from netserver.config.sections import ServerConfig
from netserver.config.table import ENVIRONMENT_PREFIX, SECTIONS
from netserver.errors import ConfigError
from netserver.limits import CONFIG_FILE_BYTES_MAX


def read_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Text and settings of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(content) > CONFIG_FILE_BYTES_MAX:
            raise ConfigError(f"configuration file {path}: larger than {CONFIG_FILE_BYTES_MAX} bytes")
        text = content.decode("utf-8")
        return text, tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise ConfigError(f"configuration file {path}: nested too deeply") from None
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from None


def _variables() -> dict[str, tuple[str, str]]:
    """Every variable that is a setting -> its section and name."""
    names = {section: [*its] for section, its in NAMES.items()}
    names["blipmq"] += [*WITHOUT_EFFECT, *ADDRESS_PARTS]
    found = {
        f"{ENVIRONMENT_PREFIX}{section}_{name}".upper(): (section, name)
        for section, its in names.items()
        for name in its
    }
    return found | {f"{ENVIRONMENT_PREFIX}DATA_DIR": ("server", "data_dir")}


def read_environment(environment: Mapping[str, str], problems: list[str] | None = None) -> Layer:
    """The settings of ``QUINTLOG_SECTION_KEY`` variables; others with that prefix belong to other tools of ours.

    Args:
        problems: gets what is wrong; None: it is raised.

    Raises:
        ConfigError: a variable of a known section names no setting, looks like a misspelling, or its file is missing.
    """
    names = _variables()
    shown = [entry.variable for its in SECTIONS.values() for entry in its.values()]
    wrong: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        base = variable
        if variable not in names and variable.endswith("_FILE"):
            base = variable.removesuffix("_FILE")
        if base not in names:
            near = difflib.get_close_matches(variable, shown, n=1, cutoff=0.85)
            section, has_key, _ = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
            if near or (has_key and section in SECTIONS):
                hint = f"did you mean {near[0]}?" if near else f"[{section}] has {', '.join(SECTIONS[section])}"
                wrong.append(f"environment variable {variable}: no such setting; {hint}")
            continue
        try:
            value = text if base == variable else Path(text).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            wrong.append(f"environment variable {variable}: {error}")
            continue
        section, name = names[base]
        found.setdefault(section, {})[name] = value
    if problems is not None:
        problems += wrong
    elif wrong:
        raise ConfigError("\n  ".join(wrong))
    return found


def build(*layers: tuple[str, Layer]) -> ServerConfig:
    """The configuration of the given layers, later ones first in rank.

    Args:
        layers: (name of the source for messages, its settings).

    Raises:
        ConfigError: names source, section and setting.
    """
    reading = Reading()
    for name, layer in layers:
        reading.take(Source(name), layer)
    return reading.config()


def load(path: Path | None, environment: Mapping[str, str], flags: Layer, ports: Ports | None = None) -> ServerConfig:
    """The configuration of a server start.

    Args:
        ports: how listeners are moved that the flags do not name.

    Raises:
        ConfigError: names all that is wrong, a line each.
    """
    reading = Reading()
    if path is not None:
        try:
            text, document = read_file(path)
            reading.take(Source(str(path), text), document)
        except ConfigError as error:
            reading.problems.append(str(error))
    reading.take(Source(ENVIRONMENT), read_environment(environment, reading.problems))
    reading.take(Source(COMMAND_LINE), flags)
    if ports is not None:
        reading.move(ports)
    return reading.config(is_served=True)

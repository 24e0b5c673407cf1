"""The one table of settings: TOML, environment, flags, the reference page and ``/v1/settings`` are all made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from engine.config import EngineConfig, TopicConfig, spelled
from netserver.config.blipmq import BlipmqSection
from netserver.config.clients import AccessSection
from netserver.config.console import ConsoleSection
from netserver.config.fujin import NOT_RELOADABLE as FUJIN_FIXED
from netserver.config.fujin import FujinSection
from netserver.config.remote import RemoteSection
from netserver.config.sections import PROTOCOL_SECTIONS, AdminSection, ReliablySection, ServerConfig, ServerSection
from netserver.config.settings import AnySetting, section_settings, toml_text

ENVIRONMENT_PREFIX: Final = "QUINTLOG_"
DEFAULT: Final = "default"
"""The origin of a setting that nobody has made."""
MAKING_TOPICS: Final = ("auto_create", "auto_create_by_readers")
"""Settings of the engine that are shown where users look for them: with the topics."""
_LISTENERS: Final = (*PROTOCOL_SECTIONS, "admin")
_RELOADABLE_FIELDS: Final = frozenset(
    {"server.log_level", "server.connections_max", "server.publish_share_bytes", "server.receive_bytes_max"}
    | {"engine.topics_max", "engine.partitions_max", "engine.pending_bytes_max"}
    | {f"topics.{name}" for name in (*MAKING_TOPICS, *section_settings(TopicConfig))}
    | {f"blipmq.{name}" for name in section_settings(BlipmqSection)}
    - {f"blipmq.{name}" for name in ("listen", "handshake_timeout", "acks", "fsync_policy")}
    | {f"reliably.{name}" for name in section_settings(ReliablySection) if name != "listen"}
    | {f"fujin.{name}" for name in section_settings(FujinSection) if name not in FUJIN_FIXED}
    | {"kafka.advertised", "access.file", "access.audit", "admin.backup_dir"}
    | {f"console.{name}" for name in section_settings(ConsoleSection)}
    | {f"{name}.clients" for name in _LISTENERS}
    | {f"{name}.tls_{what}" for name in _LISTENERS for what in ("certificate", "key", "client_ca")}
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting in its place.

    Attributes:
        section, name: as TOML has them.
        field: the name in the program, which has the unit.
        holder: the way from a `ServerConfig` to the object that has the field.
        how: how it is read and written.
        is_reloadable: SIGHUP changes it in a running server; others need a restart.
    """

    section: str
    name: str
    field: str
    holder: tuple[str, ...]
    how: AnySetting
    is_reloadable: bool

    @property
    def title(self) -> str:
        """``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"{ENVIRONMENT_PREFIX}{self.section}_{self.name}".upper()

    @property
    def change_needs(self) -> str:
        """What takes a change over: ``reload`` or ``restart``."""
        return "reload" if self.is_reloadable else "restart"

    def value(self, config: ServerConfig) -> Any:
        """Its value in a configuration."""
        return getattr(_held(config, self.holder), self.field)

    def native(self, config: ServerConfig) -> Any:
        """The same as TOML has it; a secret only as "(set)"."""
        return self.how.native(self.value(config))

    def toml(self, config: ServerConfig) -> str:
        """The same as it stands in a TOML file."""
        return toml_text(self.native(config))

    def copied(self, old: ServerConfig, new: ServerConfig) -> ServerConfig:
        """``old`` with this one setting of ``new``, and its origin."""
        origins = {**old.origins, self.title: new.origins.get(self.title, DEFAULT)}
        changed: ServerConfig = _replaced(old, self.holder, self.field, self.value(new))
        return dataclasses.replace(changed, origins=origins)


def _held(config: Any, holder: tuple[str, ...]) -> Any:
    for part in holder:
        config = getattr(config, part)
    return config


def _replaced(whole: Any, holder: tuple[str, ...], field: str, value: Any) -> Any:
    if not holder:
        return dataclasses.replace(whole, **{field: value})
    part = _replaced(getattr(whole, holder[0]), holder[1:], field, value)
    return dataclasses.replace(whole, **{holder[0]: part})


def _entries() -> Iterator[Entry]:
    kinds: list[tuple[str, tuple[str, ...], type[Any]]] = [("server", ("server",), ServerSection)]
    kinds += [(name, (name,), kind) for name, kind in PROTOCOL_SECTIONS.items()]
    kinds += [("admin", ("admin",), AdminSection), ("console", ("console",), ConsoleSection)]
    kinds += [("access", ("access",), AccessSection), ("remote", ("remote",), RemoteSection)]
    kinds += [("topics", ("engine", "topic"), TopicConfig)]
    kinds += [("topics", ("engine",), EngineConfig), ("engine", ("engine",), EngineConfig)]
    for section, holder, kind in kinds:
        for field, how in section_settings(kind).items():
            if kind is not EngineConfig or (field in MAKING_TOPICS) == (section == "topics"):
                is_reloadable = f"{section}.{field}" in _RELOADABLE_FIELDS
                yield Entry(section, spelled(field, how), field, holder, how, is_reloadable)


TABLE: Final = tuple(_entries())
SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    section: {entry.name: entry for entry in TABLE if entry.section == section}
    for section in dict.fromkeys(entry.section for entry in TABLE)
}
"""Every section with its settings by name, in the order of the reference page."""
RELOADABLE: Final = frozenset(entry.title for entry in TABLE if entry.is_reloadable)
"""Settings that SIGHUP changes in a running server; all others need a restart."""


def changes(old: ServerConfig, new: ServerConfig) -> list[str]:
    """``section.name`` of every setting that differs."""
    return [entry.title for entry in TABLE if entry.value(old) != entry.value(new)]


def reloaded(old: ServerConfig, new: ServerConfig) -> ServerConfig:
    """``old`` with those settings of ``new`` that may change in a running server."""
    for entry in TABLE:
        if entry.is_reloadable and entry.value(old) != entry.value(new):
            old = entry.copied(old, new)
    return old


def as_toml(config: ServerConfig) -> str:
    """The whole configuration as a TOML file that says of each setting what it means, where its value comes from, and
    what takes a change over."""
    lines = []
    for section, its in SECTIONS.items():
        lines.append(f"[{section}]")
        for entry in its.values():
            origin = "".join(c if c.isprintable() else "?" for c in config.origins.get(entry.title, DEFAULT))
            hidden = "# " if getattr(entry.how, "secret", False) and entry.value(config) else ""
            line = f"{entry.name} = {entry.toml(config)}"
            lines += [f"# {entry.how.help}", f"{hidden}{line}  # {origin}; {entry.change_needs}"]
        lines.append("")
    return "\n".join(lines)

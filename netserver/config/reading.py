"""Makes a configuration of layers of settings, and gathers all that is wrong with them, so that it is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.config import EngineConfig, TopicConfig, unknown_setting_text
from netserver.config.blipmq import ADDRESS_PARTS, WITHOUT_EFFECT, listen_of_parts
from netserver.config.clients import AccessSection
from netserver.config.console import ConsoleSection
from netserver.config.lines import line_of
from netserver.config.ports import Ports, moved
from netserver.config.remote import RemoteSection
from netserver.config.sections import PROTOCOL_SECTIONS, AdminSection, ServerConfig, ServerSection
from netserver.config.settings import ListenerSection, parse_value, section_settings, toml_text
from netserver.config.table import SECTIONS, TABLE, Entry
from netserver.errors import ConfigError

Layer = Mapping[str, Mapping[str, Any]]
"""Settings of one source: section -> name -> value."""
COMMAND_LINE: Final = "command line"
ENVIRONMENT: Final = "environment"
NAMES: Final[dict[str, dict[str, Entry]]] = {
    section: {entry.field: entry for entry in its.values()} | its for section, its in SECTIONS.items()
}
"""Section -> every name that a setting may be given by -> the setting. Old names are those of the fields."""
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {"flag": bool, "count": int, "list": list, "table": Mapping}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a layer comes from.

    Attributes:
        name: for messages.
        text: of a file; None: it is none.
    """

    name: str
    text: str | None = None

    def place(self, section: str, name: str = "") -> str:
        """``FILE: line N`` of a setting or section; the name alone where a line is not known."""
        line = line_of(self.text, section, name) if self.text is not None else 0
        return f"{self.name}: line {line}" if line else self.name

    def origin(self, entry: Entry, written: str) -> str:
        """Where a setting comes from."""
        if self.text is not None:
            return f"file {self.place(entry.section, written)}"
        return f"{ENVIRONMENT} {entry.variable}" if self.name == ENVIRONMENT else self.name

    def new_line(self, entry: Entry, value: Any) -> str:
        """How a setting is written."""
        if getattr(entry.how, "secret", False):
            return f"{entry.name} = [...]"
        if self.name == ENVIRONMENT:
            return f"{entry.variable}={entry.how.text(value)}"
        return f"{entry.name} = {toml_text(entry.how.native(value))}"


class Reading:
    """Layers, one by one, the later ones first in rank; then their configuration.

    Attributes:
        problems: all that is wrong so far.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._warnings: list[str] = []
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._address_parts: dict[str, tuple[Source, Any]] = {}

    def take(self, source: Source, layer: Mapping[str, Any]) -> None:
        """One more layer."""
        for section, table in layer.items():
            if section not in SECTIONS:
                text = unknown_setting_text(section, SECTIONS).replace("setting", "section")
                self.problems.append(f"{source.place(section)}: {text}")
            elif not isinstance(table, Mapping):
                text = f"{section} is a section: write [{section}] and its settings below it"
                self.problems.append(f"{source.place(section)}: {text}")
            else:
                self._take_section(source, section, table)

    def _take_section(self, source: Source, section: str, table: Mapping[str, Any]) -> None:
        written_as: dict[str, str] = {}
        for written, raw in table.items():
            where = f"{source.place(section, written)}: [{section}]"
            entry = NAMES[section].get(written)
            if section == "blipmq" and written in WITHOUT_EFFECT:
                self._warnings.append(f"{where} {written} has no effect: remove it; {WITHOUT_EFFECT[written]}")
            elif section == "blipmq" and written in ADDRESS_PARTS:
                self._address_parts[written] = (source, raw)
            elif entry is None:
                self.problems.append(f"{where} {unknown_setting_text(written, SECTIONS[section])}")
            elif written_as.setdefault(entry.name, written) != written:
                self.problems.append(f"{where} {written} is {written_as[entry.name]} once more: keep one of the two")
            else:
                self._take_setting(source, entry, written, raw)

    def _take_setting(self, source: Source, entry: Entry, written: str, raw: Any) -> None:
        where = f"{source.place(entry.section, written)}: [{entry.section}]"
        self._origins[entry.title] = source.origin(entry, written)
        try:
            value = self._values[entry.title] = parse_value(entry.how, written, raw)
        except ConfigError as error:
            self.problems.append(f"{where} {error}")
            if entry.name == "listen":
                self._values[entry.title] = None  # so that the default's port is not found to be somebody else's
            return
        if written != entry.name or not _is_native(entry, raw, source.text is None):
            self._warnings.append(f"{where} {written} is written in an old way; now: {source.new_line(entry, value)}")

    def _join_address_parts(self) -> None:
        """The original's BlipMQ names host and port apart."""
        entry = SECTIONS["blipmq"]["listen"]
        if not self._address_parts or entry.title in self._values:
            return
        source, _ = next(iter(self._address_parts.values()))
        host, port = (self._address_parts.get(name, (source, ""))[1] for name in ADDRESS_PARTS)
        where = f"{source.place('blipmq', next(iter(self._address_parts)))}: [blipmq] bind_addr and port"
        try:
            value = self._values[entry.title] = entry.how.parse(listen_of_parts(host, port))
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        self._origins[entry.title] = source.origin(entry, next(iter(self._address_parts)))
        self._warnings.append(f"{where} are written in an old way; now: {source.new_line(entry, value)}")

    def move(self, ports: Ports) -> None:
        """Move all listeners whose address is not one of the command line."""
        self._join_address_parts()
        for entry in TABLE:
            address = self._values.get(entry.title, entry.value(ServerConfig())) if entry.name == "listen" else None
            if address is None or self._origins.get(entry.title) == COMMAND_LINE:
                continue
            try:
                self._values[entry.title] = moved(address, ports)
            except ValueError as error:
                self.problems.append(f"[{entry.section}] listen = {error}")
            self._origins[entry.title] = f"{COMMAND_LINE}, which moves ports"

    def config(self, *, is_served: bool = False) -> ServerConfig:
        """The configuration.

        Args:
            is_served: it is that of a server to be started, and not of one inside of another program.

        Raises:
            ConfigError: names all that is wrong, a line each, with source, section and setting.
        """
        self._join_address_parts()
        held: dict[tuple[str, ...], dict[str, Any]] = {}
        for entry in TABLE:
            if entry.title in self._values:
                held.setdefault(entry.holder, {})[entry.field] = self._values[entry.title]
        topic = TopicConfig(**held.get(("engine", "topic"), {}))
        listeners = {name: self._listener(kind, held.get((name,), {})) for name, kind in PROTOCOL_SECTIONS.items()}
        config = ServerConfig(
            server=ServerSection(**held.get(("server",), {})),
            engine=EngineConfig(topic=topic, **held.get(("engine",), {})),
            admin=AdminSection(**held.get(("admin",), {})),
            console=ConsoleSection(**held.get(("console",), {})),
            access=AccessSection(**held.get(("access",), {})),
            remote=RemoteSection(**held.get(("remote",), {})),
            origins=self._origins,
            warnings=tuple(self._warnings),
            **listeners,  # type: ignore[arg-type]
        )
        self.problems += config.problems()
        names = (*PROTOCOL_SECTIONS, "admin")
        if is_served and not any(getattr(config, name).listen for name in names) and not self.problems:
            self.problems.append(f"nothing listens: give one of {', '.join(names)} an address to listen on")
        if self.problems:
            raise ConfigError("\n  ".join(self.problems))
        return config

    def _listener(self, kind: type[ListenerSection], values: dict[str, Any]) -> ListenerSection:
        try:
            return kind(**values)
        except ConfigError as error:
            self.problems.append(str(error))
            common = section_settings(ListenerSection)
            return kind(**{name: value for name, value in values.items() if name in common})


def _is_native(entry: Entry, raw: Any, is_text: bool) -> bool:
    """Whether a value is written as its kind is; in the environment and in flags everything is a text."""
    kind = getattr(entry.how, "kind", "table")
    if kind == "duration":
        return not isinstance(raw, int | str) or not str(raw).strip().isdecimal() or int(raw) == 0
    return is_text or isinstance(raw, _TYPES.get(kind, object))

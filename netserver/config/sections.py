"""The server's configuration: its sections, which settings may change in a running server, and its text.

``netserver.config.loading`` makes one of a file, the environment and flags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.config import DAY_MS, EngineConfig, TopicConfig
from netserver.config.blipmq import BlipmqSection
from netserver.config.clients import (
    AccessSection,
    admin_ways,
    admits_anybody,
    check_admin_clients,
    check_clients,
    ways_of,
)
from netserver.config.console import ConsoleSection
from netserver.config.fujin import NOT_RELOADABLE as FUJIN_FIXED
from netserver.config.fujin import FujinSection
from netserver.config.settings import (
    Address,
    AnySetting,
    ListenerSection,
    address_setting,
    choice_setting,
    flag_setting,
    list_setting,
    number_setting,
    section_settings,
    text_setting,
)
from netserver.errors import ConfigError
from netserver.limits import MIB


@dataclass(frozen=True)
class ServerSection:
    """Settings of the process."""

    data_dir: str = text_setting("", "Directory of the log; created when missing.")
    log_level: str = choice_setting("info", ("debug", "info", "warning", "error"), "Least severe lines in the log.")
    log_format: str = choice_setting("text", ("text", "json"), "Form of the log on stderr.")
    insecure: bool = flag_setting(
        False, "Allow listeners that other machines can reach although anybody there may do everything."
    )
    connections_max: int = number_setting(
        10_000, "count", 1, 1_000_000,
        "Open connections of all protocols; further ones wait unaccepted. The descriptor limit may allow fewer.",
    )  # fmt: skip
    publish_share_bytes: int = number_setting(
        8 * MIB, "bytes", 64 * 1024, 1024 * MIB,
        "Bytes of one connection that are not stored yet, above which it is not read (less when many publish).",
    )  # fmt: skip
    receive_bytes_max: int = number_setting(
        256 * MIB, "bytes", MIB, 64 * 1024 * MIB, "Memory for half-received frames of all connections together."
    )


@dataclass(frozen=True)
class FiggSection(ListenerSection):
    """Figg."""

    listen: Address | None = address_setting("127.0.0.1:8119", "HOST:PORT of the Figg listener, or off.")  # noqa: RUF009
    frame_bytes_max: int = number_setting(
        17 * MIB, "bytes", 64 * 1024, 256 * MIB,
        "Largest payload of a frame; a peer that announces more is cut off, larger records are not delivered.",
    )  # fmt: skip


@dataclass(frozen=True)
class ReliablySection(ListenerSection):
    """The JSON stream protocol of reliably."""

    listen: Address | None = address_setting("127.0.0.1:4001", "HOST:PORT of the reliably listener, or off.")  # noqa: RUF009
    interval_ms: int = number_setting(
        0, "duration", 1, DAY_MS, "Time between two messages of a connection.", zero="as fast as the client reads"
    )
    window_messages: int = number_setting(
        4096, "count", 16, 1_000_000,
        "Messages sent to a client and not acknowledged; one that acknowledges more rarely gets more.",
    )  # fmt: skip
    session_expiry_ms: int = number_setting(
        30_000, "duration", 100, 365 * DAY_MS, "How long a session is kept after its connection has ended."
    )
    sessions_max: int = number_setting(100_000, "count", 1, 100_000_000, "Most sessions at a time.")
    session_bytes_max: int = number_setting(
        MIB, "bytes", 16 * 1024, 1024 * MIB, "Stored, unacknowledged messages of one session."
    )
    total_bytes_max: int = number_setting(1024 * MIB, "bytes", MIB, 2**40, "The same for all sessions together.")
    stateless_bytes_per_s: int = number_setting(
        8 * MIB, "bytes", 1024, 1024 * 1024 * MIB, "Output of one stateless stream per second."
    )


@dataclass(frozen=True)
class TankSection(ListenerSection):
    """TANK."""

    listen: Address | None = address_setting("127.0.0.1:11011", "HOST:PORT of the TANK listener, or off.")  # noqa: RUF009


@dataclass(frozen=True)
class AdminSection:
    """Admin HTTP."""

    listen: Address | None = address_setting("127.0.0.1:9180", "HOST:PORT of admin HTTP, or off.")  # noqa: RUF009
    tls_certificate: str = text_setting("", "PEM file with the certificate chain; the listener then speaks HTTPS only.")
    tls_key: str = text_setting("", "PEM file with the certificate's private key.")
    tls_client_ca: str = text_setting("", "PEM file of authorities; clients must show a certificate of one of them.")
    clients: tuple[str, ...] = list_setting(
        "Ways to be known that are taken beside the token: certificate, key; empty: those that [access] file and "
        "tls_client_ca allow."
    )
    hosts: tuple[str, ...] = list_setting(
        "Further host names that requests may be addressed to; others are refused (protection from DNS rebinding)."
    )


PROTOCOL_SECTIONS: Final[dict[str, type[ListenerSection]]] = {
    "figg": FiggSection,
    "reliably": ReliablySection,
    "tank": TankSection,
    "blipmq": BlipmqSection,
    "fujin": FujinSection,
}
MAKING_TOPICS: Final = ("auto_create", "auto_create_by_readers")
"""Settings of the engine."""
RELOADABLE: Final = frozenset(
    {"server.log_level", "server.connections_max", "server.publish_share_bytes", "server.receive_bytes_max"}
    | {"engine.topics_max", "engine.partitions_max", "engine.pending_bytes_max"}
    | {f"topics.{name}" for name in MAKING_TOPICS}
    | {f"topics.{name}" for name in section_settings(TopicConfig)}
    | {f"blipmq.{name}" for name in section_settings(BlipmqSection)}
    - {f"blipmq.{name}" for name in ("listen", "bind_addr", "port", "handshake_timeout", "acks", "fsync_policy")}
    | {f"reliably.{name}" for name in section_settings(ReliablySection) if name != "listen"}
    | {f"fujin.{name}" for name in section_settings(FujinSection) if name not in FUJIN_FIXED}
    | {"access.file", "access.audit"}
    | {f"console.{name}" for name in section_settings(ConsoleSection)}
    | {f"{name}.clients" for name in (*PROTOCOL_SECTIONS, "admin")}
    | {f"{name}.tls_{what}" for name in (*PROTOCOL_SECTIONS, "admin") for what in ("certificate", "key", "client_ca")}
)
"""Settings that SIGHUP changes in a running server; all others need a restart."""

DEFAULT: Final = "default"
"""The origin of a setting that nobody has made."""


@dataclass(frozen=True)
class ServerConfig:
    """The whole configuration. ``engine.topic`` holds the defaults of topics.

    Attributes:
        origins: ``section.name`` of settings that are no defaults -> where they come from.
    """

    server: ServerSection = field(default_factory=ServerSection)
    engine: EngineConfig = field(default_factory=EngineConfig)
    figg: FiggSection = field(default_factory=FiggSection)
    reliably: ReliablySection = field(default_factory=ReliablySection)
    tank: TankSection = field(default_factory=TankSection)
    blipmq: BlipmqSection = field(default_factory=BlipmqSection)
    fujin: FujinSection = field(default_factory=FujinSection)
    admin: AdminSection = field(default_factory=AdminSection)
    console: ConsoleSection = field(default_factory=ConsoleSection)
    access: AccessSection = field(default_factory=AccessSection)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def access_file(self) -> str:
        """The file of identities; empty: none."""
        return self.access.file or self.blipmq.key_file

    def is_governed(self, name: str) -> bool:
        """Whether identities are configured for a listener: who is none of them has no rights there."""
        return bool(self.access.file or (name == "blipmq" and (self.blipmq.key_file or self.blipmq.allowed_api_keys)))

    def ways_of(self, name: str) -> tuple[str, ...]:
        """How clients of a listener may be known; see ``netserver.config.clients``."""
        if name == "admin":
            return admin_ways(self.admin, self.is_governed(name))
        return ways_of(name, self._section(name), self.is_governed(name))

    def admits_anybody(self, name: str) -> bool:
        """Whether somebody of whom nothing is known may do everything at a listener."""
        return name != "admin" and admits_anybody(self._section(name), self.is_governed(name))

    def _section(self, name: str) -> ListenerSection:
        return self.listener(name) if name in PROTOCOL_SECTIONS else ListenerSection()

    def listener(self, name: str) -> ListenerSection:
        """The section of a protocol."""
        section = getattr(self, name)
        assert isinstance(section, ListenerSection)
        return section

    def check(self) -> None:
        """Check what concerns several settings.

        Raises:
            ConfigError: says which settings and what to do.
        """
        for name in PROTOCOL_SECTIONS:
            section = self.listener(name)
            if bool(section.tls_certificate) != bool(section.tls_key):
                raise ConfigError(f"[{name}] tls_certificate and tls_key belong together: set both or none")
            if section.tls_client_ca and not section.tls_certificate and name != "fujin":  # which always has one
                raise ConfigError(f"[{name}] tls_client_ca needs tls_certificate and tls_key")
            check_clients(name, section, self.is_governed(name))
            self._check_exposed(name, section.listen, self.admits_anybody(name))
        if bool(self.admin.tls_certificate) != bool(self.admin.tls_key):
            raise ConfigError("[admin] tls_certificate and tls_key belong together: set both or none")
        if self.admin.tls_client_ca and not self.admin.tls_certificate:
            raise ConfigError("[admin] tls_client_ca needs tls_certificate and tls_key")
        check_admin_clients(self.admin)
        self._check_admin_exposed()
        self.console.check()
        if self.access.file and self.blipmq.key_file not in ("", self.access.file):
            raise ConfigError("[access] file and [blipmq] key_file name two files: put all identities into the first")
        taken: dict[Address, str] = {}
        for name in (*PROTOCOL_SECTIONS, "admin"):
            address = getattr(self, name).listen
            if address is None or address.port == 0 or name == "fujin":
                continue
            if address in taken:
                raise ConfigError(f"[{taken[address]}] and [{name}] both listen on {address}: give one another port")
            taken[address] = name

    def _check_exposed(self, name: str, address: Address | None, anybody: bool) -> None:
        if address is not None and not address.is_loopback and anybody and not self.server.insecure:
            raise ConfigError(
                f"[{name}] listen = {address} can be reached from other machines, and anybody there could publish and "
                "read everything: say who may come in ([access] file, tls_client_ca), listen on 127.0.0.1, or accept "
                "it with --insecure"
            )

    def _check_admin_exposed(self) -> None:
        address = self.admin.listen
        safe = self.admin.tls_certificate or self.server.insecure
        if address is not None and not address.is_loopback and not safe:
            raise ConfigError(
                f"[admin] listen = {address} can be reached from other machines without TLS, so that its token can be "
                "read on the way: configure TLS, listen on 127.0.0.1, or accept it with --insecure"
            )


def sections() -> dict[str, dict[str, AnySetting]]:
    """Every section with its settings. `MAKING_TOPICS` are shown where users look for them: with the topics."""
    engine: dict[str, AnySetting] = dict(section_settings(EngineConfig))
    topics: dict[str, AnySetting] = dict(section_settings(TopicConfig))
    topics |= {name: engine.pop(name) for name in MAKING_TOPICS}
    listeners = {name: section_settings(kind) for name, kind in PROTOCOL_SECTIONS.items()}
    return {
        "server": section_settings(ServerSection),
        **listeners,
        "admin": section_settings(AdminSection),
        "console": section_settings(ConsoleSection),
        "access": section_settings(AccessSection),
        "topics": topics,
        "engine": engine,
    }


def values(config: ServerConfig) -> dict[str, dict[str, str | int]]:
    """Every setting by section, as TOML has it: numbers, booleans, and texts; secrets only as "(set)"."""
    holders: dict[str, Any] = {name: getattr(config, name, None) for name in sections()}
    holders["topics"] = config.engine.topic
    return {
        section: {
            name: _plain(how, getattr(config.engine if name in MAKING_TOPICS else holders[section], name))
            for name, how in its.items()
        }
        for section, its in sections().items()
    }


def _plain(how: Any, value: Any) -> str | int:
    text: str = how.text(value)  # "7d" and "8 MiB" rather than their numbers
    return value if isinstance(value, int) and text.lower() == str(value).lower() else text


def toml_text(value: str | int) -> str:
    """One of `values` as it stands in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def changes(old: ServerConfig, new: ServerConfig) -> list[str]:
    """``section.name`` of every setting that differs."""
    found = []
    for section, its in sections().items():
        for name in its:
            holder = "engine" if section == "topics" else section
            before, after = getattr(old, holder), getattr(new, holder)
            if section == "topics" and name not in MAKING_TOPICS:
                before, after = before.topic, after.topic
            if getattr(before, name) != getattr(after, name):
                found.append(f"{section}.{name}")
    return found


def reloaded(old: ServerConfig, new: ServerConfig) -> ServerConfig:
    """``old`` with those settings of ``new`` that may change in a running server."""
    result = old
    for change in changes(old, new):
        if change not in RELOADABLE:
            continue
        section, _, name = change.partition(".")
        if section == "topics" and name not in MAKING_TOPICS:
            topic = dataclasses.replace(result.engine.topic, **{name: getattr(new.engine.topic, name)})
            engine = dataclasses.replace(result.engine, topic=topic)
            result = dataclasses.replace(result, engine=engine)
        else:
            holder = "engine" if section == "topics" else section
            part = dataclasses.replace(getattr(result, holder), **{name: getattr(getattr(new, holder), name)})
            result = dataclasses.replace(result, **{holder: part})
        origins = {**result.origins, change: new.origins.get(change, DEFAULT)}
        result = dataclasses.replace(result, origins=origins)
    return result


def as_toml(config: ServerConfig) -> str:
    """The whole configuration as a TOML file with one comment per setting."""
    lines = []
    known = sections()
    for section, its in values(config).items():
        lines.append(f"[{section}]")
        for name, value in its.items():
            restart = "" if f"{section}.{name}" in RELOADABLE else " (A change needs a restart.)"
            lines += [f"# {known[section][name].help}{restart}", f"{name} = {toml_text(value)}"]
        lines.append("")
    return "\n".join(lines)

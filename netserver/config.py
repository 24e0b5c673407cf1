"""The server's configuration: defaults < TOML file < environment < flags.

The file has one table per section below::

    [server]
    data_dir = "/var/lib/quintlog"
    [figg]
    listen = "127.0.0.1:8119"        # or "off"
    [topics]
    retention_ms = "7d"              # defaults of topics that have no setting of their own

The environment names the same settings ``QUINTLOG_SECTION_KEY`` (``QUINTLOG_TOPICS_RETENTION_MS=7d``); with ``_FILE``
behind it the value is read from that file, which suits secrets. Sizes and durations take units. An unknown setting is
an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.config import DAY_MS, EngineConfig, TopicConfig, unknown_setting_text
from engine.errors import InvalidConfig
from engine.limits import UNACKNOWLEDGED_MAX
from netserver.config_lines import line_of
from netserver.errors import ConfigError
from netserver.fujin_config import NOT_RELOADABLE as FUJIN_FIXED
from netserver.fujin_config import FujinSection
from netserver.limits import CONFIG_FILE_BYTES_MAX, MIB
from netserver.settings import (
    Address,
    AnySetting,
    ListenerSection,
    address_setting,
    choice_setting,
    flag_setting,
    list_setting,
    number_setting,
    parse_value,
    section_settings,
    text_setting,
)

ENVIRONMENT_PREFIX: Final = "QUINTLOG_"
BLIPMQ_LISTEN: Final = "127.0.0.1:5555"
Layer = Mapping[str, Mapping[str, Any]]
"""Settings of one source: section -> name -> text."""


@dataclass(frozen=True)
class ServerSection:
    """Settings of the process."""

    data_dir: str = text_setting("", "Directory of the log; created when missing.")
    log_level: str = choice_setting("info", ("debug", "info", "warning", "error"), "Least severe lines in the log.")
    log_format: str = choice_setting("text", ("text", "json"), "Form of the log on stderr.")
    insecure: bool = flag_setting(
        False, "Allow listeners that other machines can reach although neither TLS nor keys protect them."
    )
    connections_max: int = number_setting(
        10_000, "count", 1, 1_000_000,
        "Open connections of all protocols; further ones wait unaccepted. The descriptor limit may allow fewer.",
    )  # fmt: skip
    publish_share_bytes: int = number_setting(
        8 * MIB, "bytes", 64 * 1024, 1024 * MIB,
        "Bytes of one connection on their way to the disk above which it is not read (less when many publish).",
    )  # fmt: skip
    receive_bytes_max: int = number_setting(
        256 * MIB, "bytes", MIB, 64 * 1024 * MIB, "Memory for half-received frames of all connections together."
    )


@dataclass(frozen=True)
class FiggSection(ListenerSection):
    """Figg."""

    listen: Address | None = address_setting("127.0.0.1:8119", "HOST:PORT of the Figg listener, or off.")  # noqa: RUF009
    frame_bytes_max: int = number_setting(
        16 * MIB, "bytes", 64 * 1024, 256 * MIB,
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
        "Unacknowledged messages on the way to a client, once it acknowledges (more if it does so more rarely).",
    )  # fmt: skip
    session_expiry_ms: int = number_setting(
        30_000, "duration", 100, 365 * DAY_MS, "A session is kept for so long after its connection ended."
    )
    sessions_max: int = number_setting(100_000, "count", 1, 100_000_000, "Sessions at a time.")
    session_bytes_max: int = number_setting(
        MIB, "bytes", 16 * 1024, 1024 * MIB, "Stored messages of one session that were not acknowledged."
    )
    total_bytes_max: int = number_setting(1024 * MIB, "bytes", MIB, 2**40, "The same of all sessions together.")
    stateless_bytes_per_s: int = number_setting(
        8 * MIB, "bytes", 1024, 1024 * 1024 * MIB, "Output of one stateless stream in a second."
    )


@dataclass(frozen=True)
class TankSection(ListenerSection):
    """TANK."""

    listen: Address | None = address_setting("127.0.0.1:11011", "HOST:PORT of the TANK listener, or off.")  # noqa: RUF009


@dataclass(frozen=True)
class BlipmqSection(ListenerSection):
    """BlipMQ. The names of the original's own configuration file are taken too."""

    listen: Address | None = address_setting(BLIPMQ_LISTEN, "HOST:PORT of the BlipMQ listener, or off.")  # noqa: RUF009
    bind_addr: str = text_setting("", "The original's name for the host to listen on (with `port`; `listen` wins).")
    port: int = number_setting(
        0, "count", 1, 65535, "The original's name for the port (`listen` wins).", zero="see listen"
    )
    allowed_api_keys: tuple[str, ...] = list_setting(
        "API keys that may do everything. Without these and key_file any key is accepted, from this machine only.",
        secret=True,
    )
    key_file: str = text_setting("", "File of hashed API keys with rights per topic, kept by `logtool keys`.")
    max_retries: int = number_setting(
        0, "count", 1, 1_000_000, "Deliveries of one message, in all, before it is given up.", zero="no limit"
    )
    retry_backoff_ms: int = number_setting(
        100, "duration", 1, DAY_MS, "Time from the first delivery of a message to the second; doubles each time."
    )
    retry_backoff_max_ms: int = number_setting(30_000, "duration", 1, DAY_MS, "Bound of the doubled time.")
    queue_capacity: int = number_setting(
        0, "count", 1, 2**40, "Messages that wait or are in flight per subscription; the oldest beyond it are dropped.",
        zero="no limit",
    )  # fmt: skip
    message_ttl: int = number_setting(
        0, "duration", 1, 100 * 365 * DAY_MS, "Age (ms) at which a message is no longer delivered.", zero="no limit"
    )
    unacknowledged_max: int = number_setting(
        UNACKNOWLEDGED_MAX, "count", 1, UNACKNOWLEDGED_MAX,
        "Messages in flight per subscription; at so many nothing new is delivered.",
    )  # fmt: skip
    acks: str = choice_setting(
        "lazy", ("lazy", "synced"),
        "lazy: acknowledgements are on disk within about 100 ms, a crash repeats the last ones. synced: a PONG says "
        "that those before it are on disk.",
    )  # fmt: skip
    dead_letter_suffix: str = text_setting(
        "", "A message given up goes to the topic of its topic's name with this behind it; empty: it is dropped."
    )
    subscription_expiry: int = number_setting(
        30 * DAY_MS, "duration", 60_000, 100 * 365 * DAY_MS, "A subscription (ms) without use is removed after that.",
        zero="never",
    )  # fmt: skip
    handshake_timeout: int = number_setting(
        30_000, "duration", 100, DAY_MS, "Time (ms) for HELLO and AUTH; a connection that takes longer is closed."
    )
    version_2: bool = flag_setting(True, "Speak protocol version 2 (pushed deliveries) with clients that ask for it.")
    fsync_policy: str = text_setting(
        "", "The original's durability, for topics that BlipMQ clients make: always, every_n:N (as always), "
        "interval_ms:N or none; empty: as [topics] says.",
    )  # fmt: skip
    metrics_addr: str = text_setting("", "Taken from the original's files, without effect: see [admin] listen.")
    metrics_port: int = number_setting(0, "count", 0, 65535, "As metrics_addr.")
    wal_path: str = text_setting("", "Taken from the original's files, without effect: see [server] data_dir.")
    enable_tokio_console: bool = flag_setting(False, "Taken from the original's files, without effect.")

    def __post_init__(self) -> None:
        if (self.bind_addr or self.port) and self.listen == Address.parse(BLIPMQ_LISTEN):
            host = self.bind_addr or "127.0.0.1"
            text = f"[{host}]:{self.port or 5555}" if ":" in host else f"{host}:{self.port or 5555}"
            try:
                object.__setattr__(self, "listen", Address.parse(text))
            except ValueError as error:
                raise ConfigError(f"[blipmq] bind_addr and port: {error}") from None
        try:
            self.topic_settings()
        except ValueError as error:
            raise ConfigError(f"[blipmq] fsync_policy = {self.fsync_policy!r}: {error}") from None

    @property
    def is_protected(self) -> bool:
        """Clients need a key, or nobody can listen in."""
        return bool(self.tls_certificate or self.allowed_api_keys or self.key_file)

    def topic_settings(self) -> dict[str, str]:
        """What ``fsync_policy`` means for a topic.

        Raises:
            ValueError: it is none of the original's policies.
        """
        policy, _, number = self.fsync_policy.strip().lower().partition(":")
        if not policy and not number:
            return {}
        if (policy == "always" and not number) or (policy == "every_n" and number.isdecimal()):
            return {"durability": "always"}
        if policy == "none" and not number:
            return {"durability": "never"}
        if policy == "interval_ms" and number.isdecimal() and int(number) > 0:
            return {"durability": "interval", "sync_interval_ms": number}
        raise ValueError("expected always, every_n:N, interval_ms:N or none")


@dataclass(frozen=True)
class AdminSection:
    """Admin HTTP."""

    listen: Address | None = address_setting("127.0.0.1:9180", "HOST:PORT of admin HTTP, or off.")  # noqa: RUF009
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
RELOADABLE: Final = frozenset(
    {"server.log_level", "server.connections_max", "server.publish_share_bytes", "server.receive_bytes_max"}
    | {"engine.topics_max", "engine.partitions_max", "engine.pending_bytes_max", "topics.auto_create"}
    | {f"topics.{name}" for name in section_settings(TopicConfig)}
    | {f"blipmq.{name}" for name in section_settings(BlipmqSection)}
    - {f"blipmq.{name}" for name in ("listen", "bind_addr", "port", "handshake_timeout", "acks", "fsync_policy")}
    | {f"reliably.{name}" for name in section_settings(ReliablySection) if name != "listen"}
    | {f"fujin.{name}" for name in section_settings(FujinSection) if name not in FUJIN_FIXED}
    | {f"{name}.tls_{what}" for name in PROTOCOL_SECTIONS for what in ("certificate", "key", "client_ca")}
)
"""Settings that SIGHUP changes in a running server; all others need a restart."""


@dataclass(frozen=True)
class ServerConfig:
    """The whole configuration. ``engine.topic`` holds the defaults of topics."""

    server: ServerSection = field(default_factory=ServerSection)
    engine: EngineConfig = field(default_factory=EngineConfig)
    figg: FiggSection = field(default_factory=FiggSection)
    reliably: ReliablySection = field(default_factory=ReliablySection)
    tank: TankSection = field(default_factory=TankSection)
    blipmq: BlipmqSection = field(default_factory=BlipmqSection)
    fujin: FujinSection = field(default_factory=FujinSection)
    admin: AdminSection = field(default_factory=AdminSection)

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
            if section.tls_client_ca and not section.tls_certificate:
                raise ConfigError(f"[{name}] tls_client_ca needs tls_certificate and tls_key")
            self._check_exposed(name, section.listen, section.is_protected)
        self._check_exposed("admin", self.admin.listen, False)
        taken: dict[Address, str] = {}
        for name in (*PROTOCOL_SECTIONS, "admin"):
            address = getattr(self, name).listen
            if address is None or address.port == 0 or name == "fujin":
                continue
            if address in taken:
                raise ConfigError(f"[{taken[address]}] and [{name}] both listen on {address}: give one another port")
            taken[address] = name

    def _check_exposed(self, name: str, address: Address | None, protected: bool) -> None:
        if address is not None and not address.is_loopback and not protected and not self.server.insecure:
            raise ConfigError(
                f"[{name}] listen = {address} can be reached from other machines without TLS: configure TLS, listen on "
                "127.0.0.1, or accept it with --insecure"
            )


def sections() -> dict[str, dict[str, AnySetting]]:
    """Every section with its settings. ``auto_create`` is shown where users look for it: with the topics."""
    engine: dict[str, AnySetting] = dict(section_settings(EngineConfig))
    topics: dict[str, AnySetting] = dict(section_settings(TopicConfig))
    topics["auto_create"] = engine.pop("auto_create")
    listeners = {name: section_settings(kind) for name, kind in PROTOCOL_SECTIONS.items()}
    return {
        "server": section_settings(ServerSection),
        **listeners,
        "admin": section_settings(AdminSection),
        "topics": topics,
        "engine": engine,
    }


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
    for source, layer in layers:
        for section, table in layer.items():
            for name, text in table.items():
                try:
                    values[section][name] = parse_value(known[section], name, text)
                except ConfigError as error:
                    raise ConfigError(f"{_source(source, section, name)}: [{section}] {error}") from None
    auto_create = {"auto_create": values["topics"].pop("auto_create")} if "auto_create" in values["topics"] else {}
    try:
        engine = EngineConfig(topic=TopicConfig(**values["topics"]), **values["engine"], **auto_create)
    except InvalidConfig as error:
        raise ConfigError(str(error)) from None
    config = ServerConfig(
        server=ServerSection(**values["server"]),
        engine=engine,
        admin=AdminSection(**values["admin"]),
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


def values(config: ServerConfig) -> dict[str, dict[str, str]]:
    """Every setting as text, by section; secrets only as "(set)"."""
    holders: dict[str, Any] = {name: getattr(config, name, None) for name in sections()}
    holders["topics"] = config.engine.topic
    return {
        section: {
            name: how.text(getattr(config.engine if name == "auto_create" else holders[section], name))
            for name, how in its.items()
        }
        for section, its in sections().items()
    }


def changes(old: ServerConfig, new: ServerConfig) -> list[str]:
    """``section.name`` of every setting that differs."""
    found = []
    for section, its in sections().items():
        for name in its:
            holder = "engine" if section == "topics" else section
            before, after = getattr(old, holder), getattr(new, holder)
            if section == "topics" and name != "auto_create":
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
        if section == "topics" and name != "auto_create":
            topic = dataclasses.replace(result.engine.topic, **{name: getattr(new.engine.topic, name)})
            engine = dataclasses.replace(result.engine, topic=topic)
            result = dataclasses.replace(result, engine=engine)
        else:
            holder = "engine" if section == "topics" else section
            part = dataclasses.replace(getattr(result, holder), **{name: getattr(getattr(new, holder), name)})
            result = dataclasses.replace(result, **{holder: part})
    return result


def as_toml(config: ServerConfig) -> str:
    """The whole configuration as a TOML file with one comment per setting."""
    lines = []
    known = sections()
    for section, its in values(config).items():
        lines.append(f"[{section}]")
        for name, text in its.items():
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            restart = "" if f"{section}.{name}" in RELOADABLE else " (A change needs a restart.)"
            lines += [f"# {known[section][name].help}{restart}", f'{name} = "{quoted}"']
        lines.append("")
    return "\n".join(lines)

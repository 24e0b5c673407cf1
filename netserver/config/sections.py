"""The server's configuration: its sections, and what is wrong with several settings together.

``netserver.config.loading`` makes one of a file, the environment and flags; ``netserver.config.table`` has every
setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from engine.config import DAY_MS, EngineConfig
from netserver.config.blipmq import BlipmqSection
from netserver.config.clients import (
    AccessSection,
    admin_client_problems,
    admin_ways,
    admits_anybody,
    client_problems,
    ways_of,
)
from netserver.config.console import ConsoleSection
from netserver.config.fujin import FujinSection
from netserver.config.ports import address_problems
from netserver.config.remote import RemoteSection
from netserver.config.settings import (
    Address,
    ListenerSection,
    address_setting,
    choice_setting,
    flag_setting,
    list_setting,
    number_setting,
    text_setting,
)
from netserver.errors import ConfigError
from netserver.limits import MIB

_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")


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
    backup_dir: str = text_setting(
        "", "Directory below which POST /v1/backups makes backups; empty: there are none over HTTP."
    )


@dataclass(frozen=True)
class KafkaSection(ListenerSection):
    """Kafka."""

    listen: Address | None = address_setting("127.0.0.1:9092", "HOST:PORT of the Kafka listener, or off.")  # noqa: RUF009
    advertised: str = text_setting(
        "", "HOST:PORT that clients are told to connect to; empty: where a client has found this server."
    )

    def __post_init__(self) -> None:
        if self.advertised:
            try:
                address = Address.parse(self.advertised)
            except ValueError:
                address = None
            if address is None or not address.port or not _is_reached(address.host):
                raise ConfigError(
                    f"[kafka] advertised = {self.advertised!r}: expected the HOST:PORT by which clients reach it; a "
                    "HOST is a name or an address"
                )


def _is_reached(host: str) -> bool:
    """Whether it is a name, or an address of one machine."""
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return _HOST.fullmatch(host) is not None


PROTOCOL_SECTIONS: Final[dict[str, type[ListenerSection]]] = {
    "figg": FiggSection,
    "reliably": ReliablySection,
    "tank": TankSection,
    "blipmq": BlipmqSection,
    "fujin": FujinSection,
    "kafka": KafkaSection,
}


@dataclass(frozen=True)
class ServerConfig:
    """The whole configuration. ``engine.topic`` holds the defaults of topics.

    Attributes:
        origins: ``section.name`` of settings that are no defaults -> where they come from.
        warnings: what is accepted and should be written in another way, or means nothing.
    """

    server: ServerSection = field(default_factory=ServerSection)
    engine: EngineConfig = field(default_factory=EngineConfig)
    figg: FiggSection = field(default_factory=FiggSection)
    reliably: ReliablySection = field(default_factory=ReliablySection)
    tank: TankSection = field(default_factory=TankSection)
    blipmq: BlipmqSection = field(default_factory=BlipmqSection)
    fujin: FujinSection = field(default_factory=FujinSection)
    kafka: KafkaSection = field(default_factory=KafkaSection)
    admin: AdminSection = field(default_factory=AdminSection)
    console: ConsoleSection = field(default_factory=ConsoleSection)
    access: AccessSection = field(default_factory=AccessSection)
    remote: RemoteSection = field(default_factory=RemoteSection)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

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

    def problems(self) -> Iterator[str]:
        """What is wrong with several settings together: which, and what to do."""
        for name in PROTOCOL_SECTIONS:
            section = self.listener(name)
            yield from self._tls_problems(name, section)
            yield from client_problems(name, section, self.is_governed(name))
            yield from self._exposed_problems(name, section.listen, self.admits_anybody(name))
        yield from self._tls_problems("admin", self.admin)
        yield from admin_client_problems(self.admin)
        yield from self._admin_exposed_problems()
        yield from self.console.problems()
        yield from self.remote.problems()
        if self.access.file and self.blipmq.key_file not in ("", self.access.file):
            yield "[access] file and [blipmq] key_file name two files: put all identities into the first"
        yield from address_problems({name: getattr(self, name).listen for name in (*PROTOCOL_SECTIONS, "admin")})

    def _tls_problems(self, name: str, section: ListenerSection | AdminSection) -> Iterator[str]:
        if bool(section.tls_certificate) != bool(section.tls_key):
            yield f"[{name}] tls_certificate and tls_key belong together: set both or none"
        elif section.tls_client_ca and not section.tls_certificate and name != "fujin":  # which always has one
            yield f"[{name}] tls_client_ca needs tls_certificate and tls_key"

    def _exposed_problems(self, name: str, address: Address | None, anybody: bool) -> Iterator[str]:
        if address is not None and not address.is_loopback and anybody and not self.server.insecure:
            yield (
                f"[{name}] listen = {address} can be reached from other machines, and anybody there could publish and "
                "read everything: say who may come in ([access] file, tls_client_ca), listen on 127.0.0.1, or accept "
                "it with --insecure"
            )

    def _admin_exposed_problems(self) -> Iterator[str]:
        address = self.admin.listen
        safe = self.admin.tls_certificate or self.server.insecure
        if address is not None and not address.is_loopback and not safe:
            yield (
                f"[admin] listen = {address} can be reached from other machines without TLS, so that its token can be "
                "read on the way: configure TLS, listen on 127.0.0.1, or accept it with --insecure"
            )

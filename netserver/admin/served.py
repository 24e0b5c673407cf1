"""The part of the server that the admin API sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.histogram import Histogram
    from engine.log import Log
    from netserver.access.access import Access
    from netserver.admin.metrics import Rounds
    from netserver.config.sections import ServerConfig
    from netserver.config.settings import Address
    from netserver.errors import CertificateError
    from netserver.shell.collection import Collection
    from netserver.shell.counters import Counters
    from netserver.shell.listener import ConnectionGate
    from netserver.shell.services import Services, Shell


class Served(Protocol):
    """A running server; ``http`` counts what comes and goes over HTTP."""

    log: Log
    access: Access
    config: ServerConfig
    data_dir: Path
    ready: bool
    started_at: float
    started_s: float
    restart_needed: list[str]
    open_seconds: float
    shell: Shell
    gate: ConnectionGate
    rounds: Rounds
    loop_lag: Histogram
    collection: Collection
    reload_success: bool
    reload_time: float
    http: Counters
    counters: dict[str, Counters]
    services: dict[str, Services]
    failed: dict[str, CertificateError]

    @property
    def tls_listeners(self) -> list[str]:
        """Those that show a certificate of the configuration."""

    @property
    def certificates(self) -> Mapping[str, float]:
        """Listener -> when the certificate that it shows expires, in seconds since 1970."""

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Listener -> the address that it really has."""

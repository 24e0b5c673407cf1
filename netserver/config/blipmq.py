"""The section ``[blipmq]``, which takes the names of the original's own configuration file too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.config import DAY_MS
from engine.limits import UNACKNOWLEDGED_MAX
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

BLIPMQ_LISTEN: Final = "127.0.0.1:5555"


WITHOUT_EFFECT: Final = {
    "metrics_addr": "see [admin] listen",
    "metrics_port": "see [admin] listen",
    "wal_path": "see [server] data_dir",
    "enable_tokio_console": "there is nothing like it here",
}
"""Settings of the original's own files that mean nothing here, and what to look at instead."""
ADDRESS_PARTS: Final = ("bind_addr", "port")
"""The original's names for what is one setting here, `listen`."""


def listen_of_parts(bind_addr: object, port: object) -> str:
    """The address that the original's two settings mean; empty texts are its defaults."""
    host = str(bind_addr or "127.0.0.1")
    return f"[{host}]:{port or 5555}" if ":" in host else f"{host}:{port or 5555}"


@dataclass(frozen=True)
class BlipmqSection(ListenerSection):
    """BlipMQ. The names of the original's own configuration file are taken too."""

    listen: Address | None = address_setting(BLIPMQ_LISTEN, "HOST:PORT of the BlipMQ listener, or off.")  # noqa: RUF009
    allowed_api_keys: tuple[str, ...] = list_setting(
        "API keys that may do everything. Without these and a file any key is accepted, from this machine only.",
        secret=True,
    )
    key_file: str = text_setting("", "[access] file for this listener alone.")
    max_retries: int = number_setting(
        0, "count", 1, 1_000_000, "Deliveries of a message before it is given up.", zero="no limit"
    )
    retry_backoff_ms: int = number_setting(
        100, "duration", 1, DAY_MS, "Time from the first delivery of a message to the second; doubles each time."
    )
    retry_backoff_max_ms: int = number_setting(30_000, "duration", 1, DAY_MS, "Upper bound of that time.")
    queue_capacity: int = number_setting(
        0, "count", 1, 2**40, "Messages waiting or in flight per subscription; above it the oldest are dropped.",
        zero="no limit",
    )  # fmt: skip
    message_ttl: int = number_setting(
        0, "duration", 1, 100 * 365 * DAY_MS, "Age at which a message is no longer delivered.", zero="no limit"
    )
    unacknowledged_max: int = number_setting(
        UNACKNOWLEDGED_MAX, "count", 1, UNACKNOWLEDGED_MAX,
        "Messages in flight per subscription; at this number nothing new is delivered.",
    )  # fmt: skip
    acks: str = choice_setting(
        "lazy", ("lazy", "synced"),
        "lazy: acknowledgements are on disk within about 100 ms, a crash repeats the last ones. synced: a PONG says "
        "that those before it are on disk.",
    )  # fmt: skip
    dead_letter_suffix: str = text_setting(
        "", "A message that is given up goes to the topic named as its own with this suffix; empty: it is dropped."
    )
    subscription_expiry: int = number_setting(
        30 * DAY_MS, "duration", 60_000, 100 * 365 * DAY_MS,
        "Time without use after which a subscription is removed.",
        zero="never",
    )  # fmt: skip
    handshake_timeout: int = number_setting(
        30_000, "duration", 100, DAY_MS, "Time for HELLO and AUTH; a connection that takes longer is closed."
    )
    version_2: bool = flag_setting(True, "Speak protocol version 2 (pushed deliveries) with clients that ask for it.")
    fsync_policy: str = text_setting(
        "", "The original's durability, for topics that BlipMQ clients make: always, every_n:N (as always), "
        "interval_ms:N or none; empty: as [topics] says.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        try:
            self.topic_settings()
        except ValueError as error:
            raise ConfigError(f"[blipmq] fsync_policy = {self.fsync_policy!r}: {error}") from None

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

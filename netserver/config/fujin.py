"""Settings of the Fujin listener. They are here, and not in ``netserver.fujin``, so that reading a configuration loads
neither the protocol nor QUIC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from engine.config import DAY_MS
from engine.limits import CURSOR_NAME_BYTES_MAX, UNACKNOWLEDGED_MAX
from netserver.config.settings import (
    Address,
    ListenerSection,
    address_setting,
    choice_setting,
    flag_setting,
    number_setting,
    table_setting,
    text_setting,
)
from netserver.errors import ConfigError
from netserver.limits import MIB

HOUR_MS: Final = 3_600_000
NOT_RELOADABLE: Final = frozenset({"listen", "idle_timeout", "handshake_timeout", "streams_max"})
"""Settings that are fixed while the listener runs."""


@dataclass(frozen=True)
class FujinWriter:
    """An entry of ``writers``: a name that clients write to."""

    topic: str = text_setting("", "Topic of the log; empty: the writer's name.")


@dataclass(frozen=True)
class FujinReader:
    """An entry of ``readers``: a name that clients read from; empty texts mean the listener's setting."""

    topic: str = text_setting("", "Topic of the log; empty: the reader's name.")
    group: str = text_setting("", "Readers of one group share the records of a topic.")
    start: str = text_setting("", "Where a new group begins.")
    fetch_empty: str = text_setting("", "What answers a FETCH that finds nothing.")

    def __post_init__(self) -> None:
        check_start(self.start or "oldest")
        if self.fetch_empty not in ("", *FETCH_EMPTY):
            raise ConfigError(f"fetch_empty = {self.fetch_empty!r}: expected {', '.join(FETCH_EMPTY)}")


FETCH_EMPTY: Final = ("error", "zero", "block")


@dataclass(frozen=True)
class FujinSection(ListenerSection):
    """Fujin (QUIC, always encrypted)."""

    listen: Address | None = address_setting("127.0.0.1:4848", "HOST:PORT (UDP) of the Fujin listener, or off.")  # noqa: RUF009
    tls_certificate: str = text_setting(
        "",
        "PEM file with the certificate chain; empty: a self-signed one made at the first start in the data directory.",
    )
    streams_max: int = number_setting(
        1024, "count", 1, 65_536, "Writers and readers that one connection may have open at once."
    )
    message_bytes_max: int = number_setting(MIB, "bytes", 1024, 250 * MIB, "Largest message of a WRITE.")
    push_bytes_max: int = number_setting(
        64 * 1024, "bytes", 1024, 250 * MIB,
        "Largest message that is pushed; larger ones are counted, and wait for readers of the group that pull. The Go "
        "client's subscribers take 64 KiB.",
    )  # fmt: skip
    push_unacknowledged_max: int = number_setting(
        900, "count", 1, UNACKNOWLEDGED_MAX,
        "Messages pushed to one stream and not acknowledged; the Go client needs less than 1,000.",
    )  # fmt: skip
    group: str = text_setting("fujin", "Group of a reader for which `readers` names none.")
    start: str = text_setting(
        "oldest",
        "Where a new group begins: oldest, newest, a number, or @ and a time (ISO 8601 or seconds since 1970).",
    )
    fetch_empty: str = choice_setting(
        "error", FETCH_EMPTY,
        "Answer to a FETCH that finds nothing: an error (the Go client needs one), zero messages, or none until there "
        "are some.",
    )  # fmt: skip
    fetch_wait: int = number_setting(
        5_000,
        "duration",
        1,
        DAY_MS,
        "Time that a FETCH waits for the first message; the Go client gives up at 10 s.",
    )
    nack_delay: int = number_setting(
        1_000, "duration", 1, DAY_MS, "Time from a NACK to the next delivery.", zero="at once"
    )
    ack_timeout: int = number_setting(
        0, "duration", 100, DAY_MS,
        "Time after which an unacknowledged message is delivered again although its reader is there; it doubles "
        "each time.", zero="never",
    )  # fmt: skip
    deliveries_max: int = number_setting(
        0, "count", 1, 1_000_000, "Deliveries of a message before it is given up.", zero="no limit"
    )
    dead_letter_suffix: str = text_setting(
        "", "A message that is given up goes to the topic named as its own with this suffix; empty: it is dropped."
    )
    acks: str = choice_setting(
        "lazy", ("lazy", "synced"),
        "lazy: acknowledgements are on disk within about 100 ms, a crash repeats the last ones. synced: the answer to "
        "an ACK says that it is on disk.",
    )  # fmt: skip
    transaction_timeout: int = number_setting(
        60_000, "duration", 100, DAY_MS, "Time without a command after which an open transaction is rolled back.",
        zero="never",
    )  # fmt: skip
    write_headers: bool = flag_setting(
        False, "WRITE carries the headers field of the published specification; the original's clients do not send it."
    )
    ping_interval: int = number_setting(
        5_000, "duration", 100, HOUR_MS, "Time between PINGs to a connection that sends nothing.", zero="never"
    )
    ping_timeout: int = number_setting(
        5_000, "duration", 100, HOUR_MS, "Time to answer a PING; a connection that takes longer is closed."
    )
    idle_timeout: int = number_setting(
        30_000, "duration", 1_000, DAY_MS, "Time without a packet after which a connection is gone."
    )
    handshake_timeout: int = number_setting(5_000, "duration", 100, 60_000, "Time for the handshake of a connection.")
    force_terminate_timeout: int = number_setting(
        2_000,
        "duration",
        1,
        2_000,
        "Time from STOP to the end of all streams when the server stops.",
        zero="at once",
    )
    writers: tuple[tuple[str, FujinWriter], ...] = table_setting(
        FujinWriter,
        "Names that clients write to, each a table with a topic. Any other name means the topic of that name.",
    )
    readers: tuple[tuple[str, FujinReader], ...] = table_setting(
        FujinReader,
        "Names that clients read from, each a table: topic, group, start, fetch_empty. Any other name means the topic "
        "of that name.",
    )

    def __post_init__(self) -> None:
        check_start(self.start)
        groups = [self.group, *(reader.group for _, reader in self.readers)]
        if not self.group or any(len(group.encode()) > CURSOR_NAME_BYTES_MAX for group in groups):
            raise ConfigError(f"[fujin] a group has a name of 1 to {CURSOR_NAME_BYTES_MAX} bytes")


def check_start(start: str) -> None:
    """Check a setting ``start``.

    Raises:
        ConfigError: it is none.
    """
    parse_start(start)


def parse_start(start: str) -> str | int | float:
    """``oldest``, ``newest``, a number (int), or a time (float, seconds since 1970).

    Raises:
        ConfigError: it is none of these.
    """
    if start in ("oldest", "newest"):
        return start
    try:
        if not start.startswith("@"):
            return int(start)
        text = start[1:]
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ConfigError(f"start = {start!r}: expected oldest, newest, a number, or @ and a time") from None

"""Configuration of the engine: frozen dataclasses, and their reading from and writing to plain text.

A setting is written as text with a unit: ``segment_bytes = "128MiB"``, ``retention = "7d"``. A bare number counts bytes
or milliseconds. Users write a duration's name without the unit that the field has (`spelled`); both names are taken,
and what is stored has the field's.

===========  ====================================================================================================
sizes        ``b``; ``k kb kib``, ``m mb mib``, ``g gb gib``, ``t tb tib``: always powers of 1024
durations    ``ms``, ``s sec secs``, ``m min``, ``h``, ``d``, ``w``, ``y`` (365 days)
booleans     ``true false yes no on off 1 0``
===========  ====================================================================================================

Case does not matter, a space before the unit is allowed, and so is a fraction that gives a whole number (``1.5h``).
The word ``default`` takes a topic's own setting away again, so that it follows the server's default.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeVar

from engine import limits
from engine.errors import InvalidConfig

Durability = Literal["always", "interval", "never"]
Kind = Literal["bytes", "duration", "count", "choice", "flag"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

SIZE_UNITS = {"b": 1} | {
    letter + suffix: 1024**power for power, letter in enumerate("kmgt", start=1) for suffix in ("ib", "b", "")
}
DURATION_UNITS = {
    "ms": 1, "s": SECOND_MS, "sec": SECOND_MS, "secs": SECOND_MS, "m": MINUTE_MS, "min": MINUTE_MS, "h": HOUR_MS,
    "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS,
}  # fmt: skip
# for writing: the largest unit that divides the value is used
SIZE_NAMES = (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
DURATION_NAMES = (("d", DAY_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", SECOND_MS), ("ms", 1))
FLAG_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
UNSET = "default"

_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting may be.

    Attributes:
        kind: how its text is read.
        minimum, maximum: range, both ends allowed, in the unit of the setting's name.
        zero: what 0 means when it is allowed besides the range; empty = not allowed.
        choices: the words of a ``choice``.
        help: one sentence for the reference page.
    """

    kind: Kind
    minimum: int = 0
    maximum: int = 0
    zero: str = ""
    choices: tuple[str, ...] = ()
    help: str = ""

    def parse(self, text: str | int) -> int | str | bool:
        """The value of a text (numbers and booleans are taken too, as TOML gives them).

        Raises:
            ValueError: the message says what is expected.
        """
        word = str(text).strip().lower()
        if self.kind == "choice":
            if word not in self.choices:
                raise ValueError(f"expected {self.range_text()}")
            return word
        if self.kind == "flag":
            if word not in FLAG_WORDS:
                raise ValueError(f"expected {self.range_text()}")
            return FLAG_WORDS[word]
        units = {"bytes": SIZE_UNITS, "duration": DURATION_UNITS}.get(self.kind, {})
        match = _NUMBER.fullmatch(word)
        if match is None or match[2] not in {"", *units}:
            hint = f" with a unit of {', '.join(units)}" if units else ""
            raise ValueError(f"expected a number{hint}, {self.range_text()}")
        value = Decimal(match[1]) * units.get(match[2], 1)
        if value != int(value):
            raise ValueError(f"expected a whole number, {self.range_text()}")
        return self.check(int(value))

    def check(self, value: Any) -> int | str | bool:
        """`value` itself when it is valid; raises ValueError otherwise."""
        if self.kind == "choice":
            valid = value in self.choices
        elif self.kind == "flag":
            valid = isinstance(value, bool)
        else:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            valid = is_number and (self.minimum <= value <= self.maximum or (value == 0 and bool(self.zero)))
        if not valid:
            raise ValueError(f"expected {self.range_text()}")
        return value  # type: ignore[no-any-return]

    def range_text(self) -> str:
        """The valid values, in words."""
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind == "flag":
            return "true or false"
        bounds = f"{self.text(self.minimum)} to {self.text(self.maximum)}"
        return f"{bounds}, or 0 = {self.zero}" if self.zero else bounds

    def text(self, value: int | str | bool) -> str:
        """The shortest exact text of a value; parse() gives the value back."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str) or value == 0 or self.kind not in ("bytes", "duration"):
            return str(value)
        for name, size in SIZE_NAMES if self.kind == "bytes" else DURATION_NAMES:
            if value % size == 0:
                return f"{value // size}{name}"
        return str(value)

    def native(self, value: int | str | bool) -> int | str | bool:
        """The value as TOML has it: a boolean, a whole number, or a text (which durations and sizes are)."""
        return self.text(value) if self.kind in ("bytes", "duration") and value else value


def _setting(default: Any, kind: Kind, minimum: int = 0, maximum: int = 0, **details: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, minimum, maximum, **details)})


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic. 0 in a retention field = no limit."""

    durability: Durability = _setting(  # noqa: RUF009  (returns a field(), which ruff cannot see)
        "always", "choice", choices=("always", "interval", "never"),
        help="When a record is acknowledged and readable: once synced to disk, or once written and synced every "
        "sync_interval, or once written and never synced by us.",
    )  # fmt: skip
    sync_interval_ms: int = _setting(
        SECOND_MS, "duration", 1, limits.SYNC_INTERVAL_MS_MAX,
        help='Longest time that an acknowledged record stays unsynced with durability "interval".',
    )  # fmt: skip
    retention_ms: int = _setting(
        0, "duration", limits.RETENTION_MS_MIN, limits.RETENTION_MS_MAX, zero="keep for ever",
        help="Age, by the time of appending, after which records are removed.",
    )  # fmt: skip
    retention_bytes: int = _setting(
        0, "bytes", 1, limits.RETENTION_BYTES_MAX, zero="no limit",
        help="Bytes of one partition above which its oldest segments are removed, whole ones.",
    )  # fmt: skip
    retention_records: int = _setting(
        0, "count", 1, limits.RETENTION_RECORDS_MAX, zero="no limit",
        help="Records of one partition to keep: its oldest segments are removed where at least so many are left.",
    )  # fmt: skip
    segment_bytes: int = _setting(
        128 * MIB, "bytes", limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX,
        help="Size at which a segment file is sealed and the next one begun (the last batch may go beyond).",
    )  # fmt: skip
    segment_age_ms: int = _setting(
        7 * DAY_MS, "duration", limits.SEGMENT_AGE_MS_MIN, limits.SEGMENT_AGE_MS_MAX,
        help="Age at which a segment that holds records is sealed, however small.",
    )  # fmt: skip
    record_bytes_max: int = _setting(
        16 * MIB, "bytes", 1, limits.RECORD_BYTES_MAX,
        help="Largest record that is stored; a larger one is refused at once.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, str | int], base: TopicConfig | None = None) -> TopicConfig:
        """`base` (the defaults when None) with the given settings.

        Raises:
            InvalidConfig: names the setting, the nearest known one if it is unknown, and the valid range.
        """
        return dataclasses.replace(base if base is not None else cls(), **parse_settings(cls, values))

    def to_mapping(self, base: TopicConfig | None = None) -> dict[str, str]:
        """Every setting as text, or with `base` only those that differ from it."""
        return _to_mapping(self, base)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the whole engine, and the configuration that topics have unless they were given their own."""

    topic: TopicConfig = field(default_factory=TopicConfig)
    auto_create: bool = _setting(True, "flag", help="Make a topic when it is first published to or read from.")
    auto_create_by_readers: bool = _setting(
        True,
        "flag",
        help="Off: only publishing makes one; who reads what is not there is told so, or waits (Figg).",
    )
    topics_max: int = _setting(
        100_000, "count", 1, limits.TOPICS_MAX, help="Most topics; making another one is refused."
    )
    partitions_max: int = _setting(
        200_000, "count", 1, limits.PARTITIONS_MAX,
        help="Most partitions of all topics together; making a topic that would go beyond is refused.",
    )  # fmt: skip
    round_bytes_max: int = _setting(
        2 * MIB, "bytes", 64 * KIB, limits.ROUND_BYTES_MAX,
        help="Bytes that one commit round takes; larger rounds gave no throughput, only latency.",
    )  # fmt: skip
    round_files_max: int = _setting(
        limits.ROUND_PARTS_MAX, "count", 1, limits.ROUND_FILES_MAX,
        help="Files that one commit round writes and syncs: everybody waits for all of them.",
    )  # fmt: skip
    pending_bytes_max: int = _setting(
        64 * MIB, "bytes", MIB, limits.PENDING_BYTES_MAX,
        help="Bytes of records not yet committed, in total, above which no connection is read.",
    )  # fmt: skip
    tail_cache_bytes: int = _setting(
        24 * MIB, "bytes", MIB, limits.CACHE_BYTES_MAX,
        help="Bytes of committed records kept in memory for readers at the end of the log, in total.",
    )  # fmt: skip
    open_files_max: int = _setting(
        512, "count", 16, limits.OPEN_FILES_MAX,
        help="Segment files kept open; must leave room for connections below the descriptor limit.",
    )  # fmt: skip
    sync_threads: int = _setting(
        16, "count", 1, limits.SYNC_THREADS_MAX,
        help="Threads that sync the files of one round in parallel (they only wait for the disk).",
    )  # fmt: skip
    reader_threads: int = _setting(
        4, "count", 1, limits.READER_THREADS_MAX, help="Threads that read what is not in the page cache."
    )
    retention_grace_ms: int = _setting(
        MINUTE_MS, "duration", 1, DAY_MS, zero="at once",
        help="Time between raising the start of the log and removing the files, for readers that are in them.",
    )  # fmt: skip
    housekeeping_interval_ms: int = _setting(
        10 * SECOND_MS, "duration", 10, HOUR_MS, help="Time between two looks at retention and ageing segments."
    )
    clock_doubt_ms: int = _setting(
        limits.CLOCK_DOUBT_MS, "duration", SECOND_MS, DAY_MS,
        help="How long a jump of the system's clock has to last before it is believed (docs/clocks.md).",
    )  # fmt: skip
    watermarks_sync_interval_ms: int = _setting(
        SECOND_MS, "duration", 10, MINUTE_MS, help="Longest time that changed watermarks stay unsynced."
    )
    index_commit_interval_ms: int = _setting(
        SECOND_MS, "duration", 10, MINUTE_MS, help="Longest time that entries of the index stay in memory only."
    )
    index_map_bytes: int = _setting(
        64 * GIB, "bytes", MIB, limits.MAP_BYTES_MAX,
        help="Address space of the index at the start (not disk space; it grows by itself).",
    )  # fmt: skip
    state_map_bytes: int = _setting(
        64 * GIB, "bytes", MIB, limits.MAP_BYTES_MAX,
        help="Address space of the state at the start (not disk space; it grows by itself).",
    )  # fmt: skip
    reader_check_interval_ms: int = _setting(
        MINUTE_MS, "duration", SECOND_MS, HOUR_MS,
        help="Time between two searches for LMDB readers whose process has died (they pin space).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, str | int], topic: Mapping[str, str | int] | None = None
    ) -> EngineConfig:
        """The defaults with the given settings; `topic` holds those of the default topic configuration.

        Raises:
            InvalidConfig: see TopicConfig.from_mapping().
        """
        return cls(topic=TopicConfig.from_mapping(topic or {}), **parse_settings(cls, values))

    def to_mapping(self) -> dict[str, str]:
        """Every setting but those of topics, as text."""
        return _to_mapping(self, None)


_SETTINGS: dict[type, dict[str, Setting]] = {
    kind: {f.name: f.metadata["setting"] for f in dataclasses.fields(kind) if "setting" in f.metadata}
    for kind in (TopicConfig, EngineConfig)
}
AnyConfig = TypeVar("AnyConfig", TopicConfig, EngineConfig)


def settings(kind: type[TopicConfig] | type[EngineConfig]) -> dict[str, Setting]:
    """The settings of a configuration class by name, in order."""
    return _SETTINGS[kind]


def spelled(name: str, how: object) -> str:
    """A setting's name as users write it: that of a duration has no unit, its values have one."""
    return name.removesuffix("_ms") if getattr(how, "kind", "") == "duration" else name


def field_names(known: Mapping[str, object]) -> dict[str, str]:
    """Every name that a setting may be given by -> the name of its field."""
    return {spelled(name, how): name for name, how in known.items()} | {name: name for name in known}


def spelled_settings(values: Mapping[str, str]) -> dict[str, str]:
    """Settings of a topic by the names that users write."""
    known = settings(TopicConfig)
    return {spelled(name, known.get(name)): text for name, text in values.items()}


def parse_settings(kind: type[TopicConfig] | type[EngineConfig], values: Mapping[str, str | int]) -> dict[str, Any]:
    """Field values from texts. Raises InvalidConfig."""
    known, fields = settings(kind), _FIELDS[kind]
    parsed = {}
    for name, text in values.items():
        if name not in fields:
            raise InvalidConfig(unknown_setting_text(name, list(map(spelled, known, known.values()))))
        try:
            parsed[fields[name]] = known[fields[name]].parse(text)
        except ValueError as error:
            raise InvalidConfig(f"{name} = {str(text)[:100]!r}: {error}") from None
    return parsed


_FIELDS = {kind: field_names(known) for kind, known in _SETTINGS.items()}


def unknown_setting_text(name: str, known: Collection[str]) -> str:
    """Message for an unknown setting that names the nearest known one (or all when none is near)."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"unknown setting {name[:100]!r}: {hint}"


def _check(config: TopicConfig | EngineConfig) -> None:
    for name, setting in settings(type(config)).items():
        value = getattr(config, name)
        try:
            setting.check(value)
        except ValueError as error:
            raise InvalidConfig(f"{spelled(name, setting)} = {str(value)[:100]!r}: {error}") from None


def _to_mapping(config: AnyConfig, base: AnyConfig | None) -> dict[str, str]:
    return {
        name: setting.text(getattr(config, name))
        for name, setting in settings(type(config)).items()
        if base is None or getattr(config, name) != getattr(base, name)
    }

"""Options of the source, by the conventions of Spark's source for Kafka; a name that is not known is refused."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from engine.directory_layout import VERSION_FILE
from tools.spark.limits import OPEN_COST_BYTES, SPLIT_BYTES, TRIGGER_DELAY_S

T = TypeVar("T")

EARLIEST = -2
LATEST = -1
_KNOWN = (
    "path",
    "archive",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "splitBytes",
    "openCostInBytes",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "onCorruption",
    "columns",
    "includeHeaders",
)
_STREAMING = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
MANIFEST = "manifest-"
"""How the names of an archive's manifests begin."""
NO_PATH = (
    'no data directory: name it, .load("DIR"). Spark hands no options of CREATE TABLE to a source in Python: '
    "in SQL use CREATE TEMPORARY VIEW name USING quintlog OPTIONS (path 'DIR')"
)
_DELAY_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class OptionError(ValueError):
    """An option is not valid; the message names it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: numbers or times of named partitions, and one number or time for all others."""

    default: int = EARLIEST
    """EARLIEST or LATEST."""
    time_ms: int | None = None
    """For all partitions that `of` does not name."""
    of: Mapping[tuple[str, int], int] | None = None
    of_are_times: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What a query asks for."""

    path: str | None
    """The data directory."""
    archive: str | None
    """Where its segments are archived."""
    topics: tuple[str, ...] | None
    """None: all, or those of `pattern`."""
    pattern: str | None
    assigned: Mapping[str, tuple[int, ...]] | None
    start: Bound
    end: Bound
    split_bytes: int
    open_cost_bytes: int
    """As how many bytes the beginning of a range counts, where small ones are packed into one task."""
    min_partitions: int | None
    records_per_partition: int | None
    rows_per_trigger: int | None
    min_rows_per_trigger: int | None
    trigger_delay_s: float
    """How long at most records wait for more, where `min_rows_per_trigger` asks for more."""
    bytes_per_trigger: int | None
    fail_on_data_loss: bool
    skip_damage: bool
    headers: bool
    loss_hint: str = "failOnDataLoss=false goes on without them"
    """What an error says when `fail_on_data_loss`; empty: nothing."""
    damage_hint: str = "onCorruption=skip goes on behind them"

    def wants(self, topic: str, partition: int) -> bool:
        """Whether the partition is among those that are read."""
        if self.assigned is not None:
            return partition in self.assigned.get(topic, ())
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return self.topics is None or topic in self.topics

    @property
    def where(self) -> str:
        """What is read, for people."""
        return self.path or self.archive or ""

    @property
    def named(self) -> set[str]:
        """Topics that are named one by one: they have to be there."""
        return set(self.assigned or self.topics or ())

    @property
    def bounded(self) -> set[str]:
        """Topics for which a beginning or an end of their own is given."""
        return {topic for bound in (self.start, self.end) for topic, _ in bound.of or ()}


def as_documented(
    given: Iterable[str], known: Iterable[str], purpose: str = "", what: str = "option"
) -> dict[str, str]:
    """The documented spelling of each name, in any case. Raises OptionError: one is not known."""
    known = tuple(known)
    spelled = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in spelled:
            near = difflib.get_close_matches(name.lower(), spelled, n=1)
            meant = f"did you mean {spelled[near[0]]}? " if near else ""
            raise OptionError(f"unknown {what} {name!r}{purpose}; {meant}known: {', '.join(known)}")
    return {name: spelled[name.lower()] for name in given}


def topic_pattern(globs: Sequence[str]) -> str:
    """The regular expression for option ``subscribePattern``; all topics without globs."""
    return "|".join(translate(glob) for glob in globs or ["*"])


def hinted(text: str, hint: str) -> str:
    """What is wrong, and in brackets what helps."""
    return f"{text} ({hint})" if hint else text


def located(path: str) -> tuple[str | None, str | None]:
    """What a path names: a data directory or (the second) an archive, which may be a directory, too."""
    local = path
    if path.lower().startswith("file:"):
        local = unquote(urlsplit(path).path)
    elif "://" in path:
        return None, path
    place = Path(local)
    if not (place / VERSION_FILE).exists() and any(place.glob(f"{MANIFEST}*.json")):
        return None, path
    return local, None


def parse(given: Mapping[str, str], streaming: bool = False) -> Options:
    """Reads the options, whose names have no case. Raises OptionError."""
    if "paths" in given:
        raise OptionError("load() takes one path, that of a data directory or of an archive")
    spelled = as_documented(given, _KNOWN)
    options = {spelled[name]: value for name, value in given.items()}
    if not options.get("path"):
        raise OptionError(NO_PATH)
    path, archive = located(options["path"])
    if archive is not None and "archive" in options:
        raise OptionError("the path is that of an archive already; archive goes with the path of a data directory")
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(chosen)} exclude each other")
    if streaming and (ending := [name for name in options if name.startswith("ending")]):
        raise OptionError(f"{ending[0]} is for batch queries: a stream has no end")
    if not streaming and (limits := [name for name in _STREAMING if name in options]):
        raise OptionError(f"{limits[0]} is for streaming queries")
    return Options(
        path=path,
        archive=archive or options.get("archive"),
        topics=_read(options, "subscribe", _names, "names of topics, with commas between them"),
        pattern=_read(options, "subscribePattern", _pattern, "a regular expression"),
        assigned=_read(options, "assign", _assigned, 'JSON such as {"topic": [0, 1]}'),
        start=_bound(options, "starting", LATEST if streaming else EARLIEST),
        end=_bound(options, "ending", LATEST),
        split_bytes=_read(options, "splitBytes", read_size, "a size such as 64m, above 0") or SPLIT_BYTES,
        open_cost_bytes=_read(options, "openCostInBytes", read_size, "a size such as 64m, above 0") or OPEN_COST_BYTES,
        min_partitions=_read(options, "minPartitions", _positive, "a number above 0"),
        records_per_partition=_read(options, "maxRecordsPerPartition", _positive, "a number above 0"),
        rows_per_trigger=_read(options, "maxOffsetsPerTrigger", _positive, "a number above 0"),
        min_rows_per_trigger=_read(options, "minOffsetsPerTrigger", _positive, "a number above 0"),
        trigger_delay_s=_read(options, "maxTriggerDelay", read_delay, "a time such as 30s or 15m") or TRIGGER_DELAY_S,
        bytes_per_trigger=_read(options, "maxBytesPerTrigger", read_size, "a size such as 64m, above 0"),
        fail_on_data_loss=_read(options, "failOnDataLoss", _flag, "true or false") is not False,
        skip_damage=_read(options, "onCorruption", _on_corruption, "fail or skip") or False,
        headers=_read(options, "includeHeaders", _flag, "true or false") or False,
    )


def _read(options: Mapping[str, str], name: str, parser: Callable[[str], T], expected: str) -> T | None:
    if name not in options:
        return None
    try:
        return parser(options[name])
    except (ValueError, TypeError, AttributeError, KeyError, re.error):
        raise OptionError(f"{name} is {options[name]!r}; expected {expected}") from None


def _pattern(text: str) -> str:
    re.compile(text)
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise ValueError(text)
    return number


def read_delay(text: str) -> float:
    """Seconds of a time such as ``30s``. Raises ValueError, KeyError."""
    found = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip().lower())
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _DELAY_UNITS_S[found[2]]


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _on_corruption(text: str) -> bool:
    return {"fail": False, "skip": True}[text.lower()]


def read_size(text: str) -> int:
    """Bytes, such as ``64m``, ``64MiB`` or ``67108864``; as in Spark a kilobyte is 1024 bytes. Raises ValueError."""
    found = re.fullmatch(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", text.strip().lower())
    if found is None:
        raise ValueError(text)
    return _positive(found[1]) << (" kmgt".index(found[2] or " ") * 10)


def _time(text: str) -> int:
    return _whole(int(text), 0)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(text)
    return names


def _whole(value: Any, least: int) -> int:
    """A number as it is in JSON; neither text nor a fraction is taken for one."""
    if type(value) is not int or value < least:
        raise ValueError(value)
    return value


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    found = {}
    for topic, partitions in json.loads(text).items():
        if not isinstance(partitions, list):
            raise ValueError(text)
        found[topic] = tuple(_whole(partition, 0) for partition in partitions)
    return found


def _by_partition(text: str, least: int) -> dict[tuple[str, int], int]:
    fields: Any = json.loads(text)
    return {
        (topic, int(number)): _whole(value, least) for topic, row in fields.items() for number, value in row.items()
    }


def _times(text: str) -> dict[tuple[str, int], int]:
    return _by_partition(text, 0)


def _offsets(text: str) -> dict[tuple[str, int], int]:
    """Kafka's numbers begin at 0: who types that means the first."""
    return {key: value or 1 for key, value in _by_partition(text, EARLIEST).items()}


def _bound(options: Mapping[str, str], prefix: str, default: int) -> Bound:
    names = [f"{prefix}{rest}" for rest in ("Offsets", "Timestamp", "OffsetsByTimestamp")]
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other")
    if not given:
        return Bound(default)
    name = given[0]
    if name == names[1]:
        return Bound(default, time_ms=_read(options, name, _time, "milliseconds since 1970"))
    if name == names[2]:
        return Bound(
            default, of=_read(options, name, _times, 'JSON such as {"topic": {"0": 1795773600000}}'), of_are_times=True
        )
    word = options[name].lower()
    if word in ("earliest", "latest"):
        return Bound(EARLIEST if word == "earliest" else LATEST)
    expected = 'earliest, latest or JSON such as {"topic": {"0": 1}}: numbers begin at 1, -2 is earliest, -1 latest'
    return Bound(default, of=_read(options, name, _offsets, expected))

"""Configuration text of TANK topics, and what its keys mean here.

The text is lines of ``key = value``; empty lines and those that begin with ``#`` mean nothing. Sizes take the units
``b k m g t`` (also with a ``b`` after), durations ``s min h d w y`` (a bare number is seconds).

==================================  =================================================================================
log.retention.secs                  retention_ms; 0 keeps for ever
log.retention.bytes                 retention_bytes (at least 128); 0 is no limit
retention.segments.count            retention_bytes: so many segments of segment_bytes (0, or at least 2)
log.segment.bytes                   segment_bytes (at least 64; a smaller one than ours may be counts as our smallest)
log.roll.secs                       segment_age_ms (the original reads it and does not use it)
log.index.interval.bytes            checked (at least 128) and not used: the index here has a spacing of its own
log.index.size.max.bytes            the same
log.roll.jitter.secs                checked and not used
flush.messages, flush.secs          checked and not used: what an answer means is the setting ``durability``
log.cleanup.policy                  ``delete``; ``cleanup`` (keep the last message of each key) is refused: to accept
                                    it and never do it would fill the disk
log.cleaner.min.cleanable.ratio     checked (0 to 1) and not used
quintlog.NAME                       the setting NAME of this server, for example ``quintlog.durability = interval``
==================================  =================================================================================

Unknown keys are reported and left out, as the original does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from engine.config import TopicConfig
from engine.errors import InvalidConfig
from engine.limits import RETENTION_MS_MIN, SEGMENT_AGE_MS_MIN, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

from .limits import CONFIG_TEXT_BYTES_MAX, CONFIG_VALUE_CHARS_MAX

log = logging.getLogger("quintlog.tank")

OWN_PREFIX: Final = "quintlog."

_SIZE_UNITS: Final = {"": 1, "b": 1} | {
    unit + suffix: 1 << 10 * power for power, unit in enumerate("kmgt", 1) for suffix in ("", "b")
}
_DURATION_UNITS: Final = {
    "": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400,
}  # fmt: skip
_NUMBER: Final = re.compile(r"([0-9]{1,18})\s*([a-z]*)")
_RATIO: Final = re.compile(r"0|1|0?\.[0-9]{1,9}|[01]\.0{1,9}")


def _number(text: str, units: dict[str, int]) -> int:
    match = _NUMBER.fullmatch(text.lower())
    if match is None or match[2] not in units:
        raise ValueError(f"expected a number with a unit of {', '.join(filter(None, units)) or 'none'}")
    return int(match[1]) * units[match[2]]


def _size(text: str) -> int:
    return _number(text, _SIZE_UNITS)


def _seconds(text: str) -> int:
    return _number(text, _DURATION_UNITS)


def _count(text: str) -> int:
    return _number(text, {"": 1})


def _size_at_least(least: int, zero: bool = False) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = _size(text)
        if value < least and not (zero and value == 0):
            raise ValueError(f"expected at least {least}")
        return value

    return parse


def _segments(text: str) -> int:
    value = _count(text)
    if value == 1:
        raise ValueError("expected 0 or at least 2")
    return value


def _policy(text: str) -> str:
    if text != "delete":
        raise ValueError("expected delete (compaction by key is not offered)")
    return text


def _ratio(text: str) -> str:
    if _RATIO.fullmatch(text) is None:
        raise ValueError("expected 0 to 1")
    return text


_KEYS: Final[dict[str, Callable[[str], int | str]]] = {
    "retention.segments.count": _segments,
    "log.retention.secs": _seconds,
    "log.retention.bytes": _size_at_least(128, zero=True),
    "log.segment.bytes": _size_at_least(64),
    "log.index.interval.bytes": _size_at_least(128),
    "log.index.size.max.bytes": _size_at_least(128),
    "log.roll.jitter.secs": _seconds,
    "log.roll.secs": _seconds,
    "flush.messages": _count,
    "flush.secs": _seconds,
    "log.cleanup.policy": _policy,
    "log.cleaner.min.cleanable.ratio": _ratio,
}


def parse_text(text: bytes) -> dict[str, str]:
    """Keys and values of a configuration text, unchecked; of a key that comes twice the last value counts.

    Raises:
        InvalidConfig: too long, not UTF-8, a line that is no ``key = value``, or a value longer than 128 characters.
    """
    if len(text) > CONFIG_TEXT_BYTES_MAX:
        raise InvalidConfig(f"a configuration of {len(text)} bytes, at most {CONFIG_TEXT_BYTES_MAX} are allowed")
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidConfig("the configuration is not UTF-8") from None
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key or not 1 <= len(value) <= CONFIG_VALUE_CHARS_MAX:
            raise InvalidConfig(f"line {number} of the configuration is not 'key = value'")
        found[key] = value
    return found


def topic_settings(text: bytes, base: TopicConfig) -> dict[str, str | int]:
    """What a configuration text of TANK says, as settings of this server; ``base`` is what holds without.

    Raises:
        InvalidConfig: as ``parse_text``, or a value out of the range of its key.
    """
    values: dict[str, int | str] = {}
    own: dict[str, str | int] = {}
    for key, value in parse_text(text).items():
        if key.startswith(OWN_PREFIX):
            own[key.removeprefix(OWN_PREFIX)] = value
        elif key not in _KEYS:
            log.warning("unknown key %.80r in the configuration of a TANK topic is ignored", key)
        else:
            try:
                values[key] = _KEYS[key](value)
            except ValueError as error:
                raise InvalidConfig(f"{key} = {value!r}: {error}") from None
    settings = _mapped(values, base) | own
    TopicConfig.from_mapping(settings, base)
    return settings


def _mapped(values: dict[str, int | str], base: TopicConfig) -> dict[str, str | int]:
    settings: dict[str, str | int] = {}
    segment_bytes = base.segment_bytes
    if "log.segment.bytes" in values:
        segment_bytes = min(max(int(values["log.segment.bytes"]), SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
        settings["segment_bytes"] = segment_bytes
    if "log.retention.secs" in values:
        retention_ms = int(values["log.retention.secs"]) * 1000
        settings["retention_ms"] = retention_ms and max(retention_ms, RETENTION_MS_MIN)
    if values.get("log.roll.secs"):
        settings["segment_age_ms"] = max(int(values["log.roll.secs"]) * 1000, SEGMENT_AGE_MS_MIN)
    limits = [int(values["log.retention.bytes"])] if "log.retention.bytes" in values else []
    if "retention.segments.count" in values:
        limits.append(int(values["retention.segments.count"]) * segment_bytes)
    if limits:
        settings["retention_bytes"] = min(filter(None, limits), default=0)
    return settings

"""Configuration of topics by Kafka's names, and what they mean here.

=======================  ============================================================================================
retention.ms             retention_ms; -1 keeps for ever
retention.bytes          retention_bytes; -1 is no limit
segment.bytes            segment_bytes
segment.ms               segment_age_ms
max.message.bytes        record_bytes_max: of one record; how large a batch may be follows from it
cleanup.policy           ``delete``: compaction by key is not offered
compression.type         ``producer``: codecs are not kept
message.timestamp.type   ``CreateTime``
min.insync.replicas      ``1``
quintlog.NAME            the setting NAME of this server, for example ``quintlog.durability``
=======================  ============================================================================================

The same is taken by CreateTopics and IncrementalAlterConfigs, and shown by DescribeConfigs. A value that the range of
the setting does not allow is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from engine.config import TopicConfig, field_names, spelled
from engine.config import settings as topic_settings
from engine.errors import InvalidConfig

from .schema import Values

if TYPE_CHECKING:
    from engine.state.topic_entries import Topic

OWN_PREFIX: Final = "quintlog."
SETTINGS: Final = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_age_ms",
    "max.message.bytes": "record_bytes_max",
}
UNLIMITED: Final = frozenset(("retention.ms", "retention.bytes"))
"""-1 is no limit, which is 0 here."""
FIXED: Final = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
_KNOWN: Final = topic_settings(TopicConfig)
_OWN: Final = field_names(_KNOWN)
_DIGITS: Final = re.compile("[0-9]{1,20}")
IS_OWN: Final = 1
IS_DEFAULT: Final = 5
_STRING, _LONG, _INT, _LIST = 2, 5, 3, 7
_TYPES: Final = dict.fromkeys(SETTINGS, _LONG) | {"min.insync.replicas": _INT, "cleanup.policy": _LIST}


def setting_of(name: str, value: str | None) -> dict[str, str]:
    """What a configuration means for the settings of a topic; None: that of the server.

    Raises:
        InvalidConfig: the name is not known, or the value cannot be.
    """
    if name in FIXED:
        if value not in (None, FIXED[name]):
            raise InvalidConfig(f"{name}={value}: only {FIXED[name]} is offered here")
        return {}
    if name in SETTINGS and value is not None:
        return {SETTINGS[name]: _number(name, value)}
    setting = SETTINGS.get(name) or _OWN.get(name.removeprefix(OWN_PREFIX) if name.startswith(OWN_PREFIX) else "")
    if setting is None:
        raise InvalidConfig(f"{name} is not known here; there are {', '.join(sorted((*SETTINGS, *FIXED)))}")
    if value is None:
        return {setting: "default"}
    return {setting: value}


def _number(name: str, value: str) -> str:
    """The value of a setting that is a number in Kafka's unit, milliseconds or bytes. Raises InvalidConfig."""
    setting = _KNOWN[SETTINGS[name]]
    is_unlimited = name in UNLIMITED
    if is_unlimited and value == "-1":
        return "0"
    number = int(value) if _DIGITS.fullmatch(value) else -1
    if setting.minimum <= number <= setting.maximum or (number == 0 and setting.zero and not is_unlimited):
        return str(number)
    unit = "ms" if name.endswith(".ms") else "bytes"
    more = ", or -1 for no limit" if is_unlimited else ""
    bounds = f"{setting.minimum} to {setting.maximum}{more}"
    raise InvalidConfig(f"{name}={value[:100]}: expected a number of {unit}, {bounds}")


def settings_of(configs: list[Values], base: TopicConfig) -> dict[str, str]:
    """The settings of a new topic; ``base`` is what holds without.

    Raises:
        InvalidConfig: see `setting_of`, or a value out of its range.
    """
    found: dict[str, str] = {}
    for config in configs:
        if config["value"] is not None:
            found |= setting_of(config["name"], config["value"])
    TopicConfig.from_mapping(found, base)
    return found


def configs_of(topic: Topic) -> Iterator[Values]:
    """The configuration of a topic, as DescribeConfigs tells it."""
    for name, setting in SETTINGS.items():
        value = getattr(topic.config, setting)
        yield _config(name, str(-1 if name in UNLIMITED and not value else value), setting in topic.settings)
    for setting, how in _KNOWN.items():
        if setting not in SETTINGS.values():
            text = how.text(getattr(topic.config, setting))
            yield _config(OWN_PREFIX + spelled(setting, how), text, setting in topic.settings)
    for name, value in FIXED.items():
        yield _config(name, value, False) | {"read_only": True}


def _config(name: str, value: str, is_own: bool) -> Values:
    source = IS_OWN if is_own else IS_DEFAULT
    return {"name": name, "value": value, "source": source, "type": _TYPES.get(name, _STRING), "synonyms": ()}

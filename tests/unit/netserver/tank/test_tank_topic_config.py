"""TANK's per-topic configuration text on our settings."""

from __future__ import annotations

import pytest

from engine.config import TopicConfig
from engine.errors import InvalidConfig
from engine.limits import SEGMENT_BYTES_MIN
from netserver.tank.limits import CONFIG_TEXT_BYTES_MAX
from netserver.tank.topic_config import topic_settings

BASE = TopicConfig()


def config_of(text: bytes) -> TopicConfig:
    return TopicConfig.from_mapping(topic_settings(text, BASE), BASE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# nothing\n\n   \n", {}),
        ("log.retention.secs = 2d", {"retention_ms": 172_800_000}),
        ("log.retention.secs=0", {"retention_ms": 0}),
        ("log.retention.bytes=1gb", {"retention_bytes": 1 << 30}),
        ("log.retention.bytes=0", {}),
        ("log.segment.bytes=64", {"segment_bytes": SEGMENT_BYTES_MIN}),
        ("log.segment.bytes = 256 m", {"segment_bytes": 256 << 20}),
        ("log.segment.bytes=64t", {"segment_bytes": 16 << 30}),
        ("log.roll.secs=1h", {"segment_age_ms": 3_600_000}),
        ("log.roll.secs=0", {}),
        ("retention.segments.count=3", {"retention_bytes": 3 * BASE.segment_bytes}),
        ("retention.segments.count=0", {}),
        (
            "log.segment.bytes=1m\nretention.segments.count=4\nlog.retention.bytes=3m",
            {"segment_bytes": 1 << 20, "retention_bytes": 3 << 20},
        ),
        ("log.retention.bytes=100\nlog.retention.bytes=128", {"retention_bytes": 128}),
        ("log.index.interval.bytes=4096\nlog.index.size.max.bytes=10mb\nlog.roll.jitter.secs=5", {}),
        ("flush.messages=1\nflush.secs=0\nlog.cleanup.policy=delete\nlog.cleaner.min.cleanable.ratio=0.5", {}),
        ("no.such.key=1", {}),
        (
            "quintlog.durability=interval\nquintlog.sync_interval_ms=50",
            {"durability": "interval", "sync_interval_ms": 50},
        ),
    ],
)
def test_keys(text: str, expected: dict[str, object]) -> None:
    config = config_of(text.encode())
    assert {name: getattr(config, name) for name in expected} == expected
    if not expected:
        assert config == BASE


@pytest.mark.parametrize(
    "text",
    [
        "log.segment.bytes=1",
        "log.segment.bytes=many",
        "log.segment.bytes=1x",
        "log.segment.bytes",
        "log.segment.bytes=",
        "=5",
        "log.retention.bytes=127",
        "log.retention.secs=-1",
        "log.retention.secs=1parsec",
        "retention.segments.count=1",
        "log.index.interval.bytes=127",
        "log.index.size.max.bytes=127",
        "flush.messages=1s",
        "log.cleanup.policy=cleanup",
        "log.cleanup.policy=",
        "log.cleaner.min.cleanable.ratio=1.5",
        "quintlog.durability=sometimes",
        "quintlog.nothing=1",
        "log.retention.secs=" + "1" * 129,
    ],
)
def test_invalid(text: str) -> None:
    with pytest.raises(InvalidConfig):
        config_of(text.encode())


@pytest.mark.parametrize("text", [b"\xff=1", b"#" * (CONFIG_TEXT_BYTES_MAX + 1)])
def test_no_text(text: bytes) -> None:
    with pytest.raises(InvalidConfig):
        config_of(text)


def test_the_longest_text_is_taken() -> None:
    assert config_of(b"#" * CONFIG_TEXT_BYTES_MAX) == BASE

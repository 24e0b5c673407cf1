"""Configuration read from text and written back, and what an operator is told about a mistake."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import DURATION_UNITS, SIZE_UNITS, EngineConfig, TopicConfig, settings
from engine.errors import InvalidConfig


def topic(**values: object) -> TopicConfig:
    return TopicConfig.from_mapping(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("131072", 131072), (131072, 131072), ("128 KiB", 131072), ("128k", 131072), ("128kb", 131072),
        ("128KB", 131072), ("1m", 1 << 20), ("64 MiB", 64 << 20), ("1.5 MiB", 3 << 19), ("1g", 1 << 30),
        (" 2 GB ", 2 << 30), ("131072b", 131072),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size_bytes: int) -> None:
    assert topic(segment_bytes=text).segment_bytes == size_bytes


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("86400000", 86_400_000), ("1500ms", 1500), ("30s", 30_000), ("30 secs", 30_000), ("2 min", 120_000),
        ("2m", 120_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("2w", 1_209_600_000), ("1y", 31_536_000_000),
        ("0", 0), (0, 0), ("0d", 0),
    ],
)  # fmt: skip
def test_durations(text: str | int, time_ms: int) -> None:
    assert topic(retention_ms=text).retention_ms == time_ms


def test_choices_counts_and_flags() -> None:
    assert topic(durability=" Interval ").durability == "interval"
    assert topic(retention_records="12").retention_records == 12
    for word, value in (("yes", True), ("OFF", False), ("1", True), (True, True), (False, False)):
        assert EngineConfig.from_mapping({"auto_create": word}).auto_create is value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"retentio": "7d"}, "unknown setting 'retentio': did you mean retention?"),
        ({"xyzzy": 1}, "unknown setting 'xyzzy': known are durability, sync_interval"),
        ({"segment_bytes": "1k"}, "segment_bytes = '1k': expected 64KiB to 16GiB"),
        ({"segment_bytes": "17 GiB"}, "segment_bytes = '17 GiB': expected 64KiB to 16GiB"),
        ({"segment_bytes": "12 parsecs"}, "expected a number with a unit of b, kib,"),
        ({"segment_bytes": "-1"}, "expected a number"),
        ({"segment_bytes": "1e6"}, "expected a number"),
        ({"segment_bytes": "9" * 5000}, "expected a number"),
        ({"segment_bytes": "99999999999999999999t"}, "expected 64KiB to 16GiB"),
        ({"segment_bytes": "65536.5"}, "expected a whole number, 64KiB to 16GiB"),
        ({"segment_bytes": "0"}, "expected 64KiB to 16GiB"),
        ({"retention_ms": "1"}, "expected 1s to 365000d, or 0 = keep for ever"),
        ({"retention_records": "5k"}, "expected a number, 1 to"),
        ({"durability": "sometimes"}, "durability = 'sometimes': expected always or interval or never"),
        ({"record_bytes_max": "251 MiB"}, "expected 1 to 250MiB"),
    ],
)
def test_mistakes(values: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TopicConfig.from_mapping(values)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_mistakes_in_the_engines_settings() -> None:
    for values, message in (
        ({"auto_create": "maybe"}, "auto_create = 'maybe': expected true or false"),
        ({"sync_thread": "3"}, "did you mean sync_threads?"),
        ({"durability": "always"}, "unknown setting"),
    ):
        with pytest.raises(InvalidConfig, match=message.replace("?", r"\?")):
            EngineConfig.from_mapping(values)
    with pytest.raises(InvalidConfig, match="did you mean retention"):
        EngineConfig.from_mapping({}, {"retention_m": "1d"})


@pytest.mark.parametrize(
    ("field", "value"),
    [("durability", "Always"), ("segment_bytes", 1), ("segment_bytes", True), ("segment_bytes", 1e6),
     ("retention_ms", -1)],
)  # fmt: skip
def test_fields_are_checked_too(field: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=field.removesuffix("_ms")):
        TopicConfig(**{field: value})  # type: ignore[arg-type]


def test_engine_flag_fields_are_checked_too() -> None:
    with pytest.raises(InvalidConfig, match="auto_create"):
        EngineConfig(auto_create=1)  # type: ignore[arg-type]


def test_written_and_read_back() -> None:
    config = TopicConfig(
        durability="never", sync_interval_ms=250, retention_ms=90_000, retention_bytes=1048577, segment_bytes=1 << 20
    )  # fmt: skip
    assert config.to_mapping() == {
        "durability": "never", "sync_interval_ms": "250ms", "retention_ms": "90s", "retention_bytes": "1048577",
        "retention_records": "0", "segment_bytes": "1MiB", "segment_age_ms": "7d", "record_bytes_max": "16MiB",
    }  # fmt: skip
    assert TopicConfig.from_mapping(config.to_mapping()) == config
    assert config.to_mapping(TopicConfig(durability="never", retention_ms=90_000)) == {
        "sync_interval_ms": "250ms", "retention_bytes": "1048577", "segment_bytes": "1MiB"
    }  # fmt: skip
    engine = EngineConfig(auto_create=False, pending_bytes_max=3 << 20, topic=config)
    assert EngineConfig.from_mapping(engine.to_mapping(), config.to_mapping()) == engine


def test_settings_are_laid_over_a_base() -> None:
    base = TopicConfig(durability="interval", retention_ms=1000)
    assert TopicConfig.from_mapping({"retention_ms": "2s"}, base) == dataclasses.replace(base, retention_ms=2000)


def test_defaults_are_within_their_ranges_and_explained() -> None:
    for kind in (TopicConfig, EngineConfig):
        for name, setting in settings(kind).items():
            assert setting.help.endswith("."), name
            if setting.kind in ("bytes", "duration", "count"):
                assert setting.minimum < setting.maximum, name
                assert setting.kind == "count" or name.endswith(("_bytes", "_bytes_max", "_ms", "_bytes_min")), name


@given(st.data())
def test_every_value_is_written_exactly(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([TopicConfig, EngineConfig]))
    name, setting = data.draw(st.sampled_from(sorted(settings(kind).items())))
    if setting.kind == "choice":
        value: object = data.draw(st.sampled_from(setting.choices))
    elif setting.kind == "flag":
        value = data.draw(st.booleans())
    else:
        value = data.draw(
            st.integers(setting.minimum, setting.maximum) | st.just(0 if setting.zero else setting.minimum)
        )
    assert setting.parse(setting.text(value)) == value  # type: ignore[arg-type]
    assert getattr(kind.from_mapping({name: setting.text(value)}), name) == value  # type: ignore[arg-type]


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_mistake(text: str) -> None:
    for name in settings(TopicConfig):
        try:
            config = TopicConfig.from_mapping({name: text})
        except InvalidConfig:
            continue
        else:
            assert settings(TopicConfig)[name].check(getattr(config, name)) == getattr(config, name)


def test_units_do_not_clash() -> None:
    assert DURATION_UNITS["m"] == 60_000
    assert SIZE_UNITS["m"] == 1 << 20
    assert all(unit == unit.lower() for unit in (*SIZE_UNITS, *DURATION_UNITS))

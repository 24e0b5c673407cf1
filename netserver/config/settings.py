"""Settings of the server's configuration sections, beside those of the engine (numbers, sizes, durations, choices).

A section is a frozen dataclass whose fields are made by ``setting``. Values are read from text, as TOML, environment
and flags give them; ``parse_section`` names the nearest known setting for an unknown one.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engine.config import Setting, unknown_setting_text
from netserver.errors import ConfigError

_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens. Port 0 = a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach it."""
        return (
            self.host == "localhost" or self.host == "::1" or re.fullmatch(r"127(\.[0-9]+){3}", self.host) is not None
        )

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address of ``HOST:PORT`` or ``[HOST]:PORT``.

        Raises:
            ValueError: says what is expected.
        """
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("expected an IPv6 address in brackets: [HOST]:PORT")
        if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ValueError("expected HOST:PORT (port 0 picks a free one) or off")
        return cls(host, int(port))


class AnySetting(Protocol):
    """What this module needs of a setting; ``engine.config.Setting`` is one too."""

    @property
    def help(self) -> str:
        """One sentence for the reference page."""

    def parse(self, text: Any) -> Any:
        """The value of a text; raises ValueError saying what is expected."""

    def text(self, value: Any) -> str:
        """A text that ``parse`` turns into the value."""

    def native(self, value: Any) -> Any:
        """The value as TOML has it, which ``parse`` takes too."""


@dataclass(frozen=True, slots=True)
class TextSetting:
    """A setting that is not a number.

    Attributes:
        kind: ``address`` (an ``Address``, or None for "off"), ``text``, or ``list`` (a tuple of texts; commas
            separate them in the environment).
        secret: never printed.
        help: one sentence for the reference page.
    """

    kind: Literal["address", "text", "list"]
    secret: bool = False
    help: str = ""

    def parse(self, text: str | int | Sequence[str]) -> Address | str | tuple[str, ...] | None:
        """The value of a text (a list may also come as one).

        Raises:
            ValueError: the message says what is expected.
        """
        if self.kind == "list":
            items = [text] if isinstance(text, int) else text.split(",") if isinstance(text, str) else text
            return tuple(item for item in (str(item).strip() for item in items) if item)
        if not isinstance(text, str | int):
            raise ValueError("expected a text")
        word = str(text).strip()
        if self.kind == "text":
            return word
        return None if word.lower() == "off" else Address.parse(word)

    def text(self, value: Any) -> str:
        """A text that ``parse`` turns into ``value`` (for a secret: what may be shown of it)."""
        if self.secret and value:
            return "(set)"
        if self.kind == "list":
            return ",".join(value)
        return "off" if value is None else str(value)

    def native(self, value: Any) -> str | list[str]:
        """The value as TOML has it: a text, or a list of texts."""
        return list(value) if self.kind == "list" and not (self.secret and value) else self.text(value)


def setting(default: Any, how: AnySetting) -> Any:
    """A dataclass field that is a setting."""
    return field(default=default, metadata={"setting": how})


def address_setting(default: str, help: str) -> Any:
    """A listener's address."""
    how = TextSetting("address", help=help)
    return setting(how.parse(default), how)


def text_setting(default: str, help: str) -> Any:
    """A text or path; empty = not set."""
    return setting(default, TextSetting("text", help=help))


def list_setting(help: str, *, secret: bool = False) -> Any:
    """A list of texts, empty by default."""
    return setting((), TextSetting("list", secret=secret, help=help))


def number_setting(
    default: int, kind: Literal["bytes", "duration", "count"], minimum: int, maximum: int, help: str, zero: str = ""
) -> Any:
    """A number (of bytes, of milliseconds) with bounds; ``zero`` says what 0 means where it is allowed."""
    return setting(default, Setting(kind, minimum, maximum, zero=zero, help=help))


def choice_setting(default: str, choices: tuple[str, ...], help: str) -> Any:
    """One of some words."""
    return setting(default, Setting("choice", choices=choices, help=help))


def flag_setting(default: bool, help: str) -> Any:
    """Yes or no."""
    return setting(default, Setting("flag", help=help))


def toml_text(value: Any) -> str:
    """A native value as it stands in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(name, ensure_ascii=False)} = {toml_text(its)}" for name, its in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def section_settings(kind: type[Any]) -> dict[str, AnySetting]:
    """The settings of a section by name, in order."""
    return {f.name: f.metadata["setting"] for f in dataclasses.fields(kind) if "setting" in f.metadata}


def known_setting(known: Mapping[str, AnySetting], name: str) -> AnySetting:
    """The setting of a name. Raises ConfigError: it is unknown; names the nearest known one."""
    if name not in known:
        raise ConfigError(unknown_setting_text(name, known))
    return known[name]


def parse_value(how: AnySetting, name: str, text: Any) -> Any:
    """The value of one setting.

    Raises:
        ConfigError: names the setting and what is expected.
    """
    if isinstance(text, dict) and not isinstance(how, TableSetting):
        raise ConfigError(f"{name}: expected a value, not a table")
    if isinstance(text, bool):
        text = str(text).lower()
    try:
        return how.parse(text if isinstance(text, int | str | list | dict) else str(text))
    except ValueError as error:
        shown = "(secret)" if getattr(how, "secret", False) else repr(str(text)[:100])
        raise ConfigError(f"{name} = {shown}: {error}") from None


@dataclass(frozen=True)
class ListenerSection:
    """Settings that every listener has."""

    listen: Address | None = address_setting("off", "HOST:PORT, or off.")  # noqa: RUF009
    tls_certificate: str = text_setting("", "PEM file with the certificate chain; the listener then speaks TLS only.")
    tls_key: str = text_setting("", "PEM file with the certificate's private key.")
    tls_client_ca: str = text_setting("", "PEM file of authorities; clients must show a certificate of one of them.")
    clients: tuple[str, ...] = list_setting(
        "Ways to be known that are taken: certificate, network, key, anyone; empty: those that [access] file and "
        "tls_client_ca allow, and anyone without these."
    )


@dataclass(frozen=True, slots=True)
class TableSetting:
    """A setting that is a table of named entries, each with settings of its own.

    Its value is a tuple of (name, entry). In the environment, and where it is printed, it is an inline table of TOML:
    ``{ audit = { topic = "orders", group = "audit" } }``.

    Attributes:
        entry: the dataclass of an entry; its fields are made by ``setting``.
        help: one sentence for the reference page.
    """

    entry: type[Any]
    help: str = ""

    def parse(self, text: str | int | Sequence[str] | Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The entries of a table.

        Raises:
            ValueError: says which entry and setting, and what is expected.
        """
        if isinstance(text, str):
            try:
                text = tomllib.loads(f"table = {text or '{}'}")["table"]
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"expected an inline table of TOML: {error}") from None
        if not isinstance(text, Mapping):
            raise ValueError("expected a table")
        known = section_settings(self.entry)
        found = []
        for name, table in text.items():
            if not isinstance(table, Mapping):
                raise ValueError(f"{name}: expected a table")
            try:
                values = {key: parse_value(known_setting(known, key), key, value) for key, value in table.items()}
                found.append((name, self.entry(**values)))
            except ConfigError as error:
                raise ValueError(f"{name}: {error}") from None
        return tuple(found)

    def text(self, value: tuple[tuple[str, Any], ...]) -> str:
        """A text that ``parse`` turns into ``value``."""
        return toml_text(self.native(value))

    def native(self, value: tuple[tuple[str, Any], ...]) -> dict[str, dict[str, Any]]:
        """The value as TOML has it: a table of tables."""
        known = section_settings(self.entry)
        return {name: {key: how.native(getattr(entry, key)) for key, how in known.items()} for name, entry in value}


def table_setting(entry: type[Any], help: str) -> Any:
    """Named entries, none by default."""
    return setting((), TableSetting(entry, help))

"""API keys: who may log in, and which topics he may publish to and subscribe to.

Keys come from two places. ``allowed_api_keys`` in the configuration holds them in clear, as the original does; they may
do everything. A key file holds hashes only, one JSON object a line::

    {"name": "billing", "salt": "<hex>", "hash": "<hex>", "publish": ["orders.*"], "subscribe": ["*"], "created": ...}

A pattern is a glob over the whole topic: ``*`` any characters, ``?`` one, ``[...]`` one of some; no pattern, no right.

Hashing. Keys that we make are 256 random bits, so nobody can guess one from its hash, and BLAKE2b with a salt per key
is enough. A slow hash (scrypt) would protect guessable keys in a stolen file, but here each AUTH of a stranger would
cost the server 50 ms and 16 MiB: one connection could stop it. So keys of one's own choice have to be long.

Checking compares digests in constant time, and always with all keys: how long it takes says nothing about any of them.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from re import Pattern
from re import compile as compile_pattern
from typing import Any

from engine.callbacks import call_each
from engine.files.system import SystemFiles, write_new_file
from netserver.errors import ConfigError
from netserver.limits import API_KEY_CHARS_MIN, KEY_FILE_BYTES_MAX

DIGEST_BYTES = 32
SALT_BYTES = 16
KEY_FILE_MODE = 0o600
EVERYTHING = ("*",)
PROCESS_SALT = secrets.token_bytes(SALT_BYTES)
"""For keys in clear, which are not stored: the same over a reload."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A key's holder and rights.

    Attributes:
        name: unique in the key file; of keys from the configuration their place there.
        publish, subscribe: globs over topic names.
        proof: what is kept of the key: another key of the same name is another holder's.
    """

    name: str
    publish: tuple[str, ...] = EVERYTHING
    subscribe: tuple[str, ...] = EVERYTHING
    proof: bytes = field(default=b"", repr=False)

    def may_publish(self, topic: bytes) -> bool:
        """Whether publishing to this topic is allowed."""
        return _matches(self.publish, topic)

    def may_subscribe(self, topic: bytes) -> bool:
        """Whether reading from this topic is allowed."""
        return _matches(self.subscribe, topic)


ANYBODY = Identity("anybody")


@lru_cache(1024)
def _pattern(glob: str) -> Pattern[str]:
    return compile_pattern(translate(glob))


def _matches(globs: Iterable[str], topic: bytes) -> bool:
    text = topic.decode("utf-8", "surrogateescape")
    return any(glob == "*" or _pattern(glob).match(text) is not None for glob in globs)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A line of a key file."""

    identity: Identity
    salt: bytes
    digest: bytes
    created_s: int = 0

    def matches(self, key: bytes) -> bool:
        """Whether this is the key, in constant time."""
        return hmac.compare_digest(digest_of(key, self.salt), self.digest)


def digest_of(key: bytes, salt: bytes) -> bytes:
    """What is kept of a key."""
    return blake2b(key, digest_size=DIGEST_BYTES, salt=salt).digest()


class Keys:
    """The keys of one listener.

    Args:
        allowed: keys in clear.
        path: a key file, or None.

    Attributes:
        generation: rises with every `replace`; who holds an ``Identity`` then asks :meth:`current` again.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong.
    """

    def __init__(self, allowed: Sequence[str] = (), path: Path | None = None) -> None:
        self.generation = 0
        self._path = path
        self._allowed = tuple(allowed)
        self._listeners: dict[Callable[[], None], None] = {}
        self._keys = read_key_file(path) if path is not None else []
        # Keys in clear are compared as digests too: equal lengths, equal times.
        for number, key in enumerate(allowed, 1):
            digest = digest_of(key.encode(), PROCESS_SALT)
            identity = Identity(f"allowed_api_keys[{number}]", proof=digest)
            self._keys.append(StoredKey(identity, PROCESS_SALT, digest))

    @property
    def is_open(self) -> bool:
        """No keys are configured: any one is accepted, from loopback only. (An empty key file admits nobody.)"""
        return not self._keys and self._path is None

    def check(self, key: str) -> Identity | None:
        """The holder of a key, or None."""
        raw = key.encode("utf-8", "surrogatepass")
        found: Identity | None = None
        for stored in self._keys:
            if stored.matches(raw):
                found = stored.identity
        return found

    def current(self, identity: Identity) -> Identity | None:
        """The same holder after a reload, with his present rights; None: his key was revoked."""
        if identity is ANYBODY:
            return ANYBODY if self.is_open else None
        return next((stored.identity for stored in self._keys if stored.identity.proof == identity.proof), None)

    def replace(self, prepared: Keys) -> None:
        """Take over the keys of another object; connections of revoked keys are closed by their sessions."""
        self._path = prepared._path
        self._allowed = prepared._allowed
        self._keys = prepared._keys
        self.generation += 1
        call_each("a change of the API keys", tuple(self._listeners))

    @property
    def path(self) -> Path | None:
        """The key file."""
        return self._path

    def read_again(self) -> None:
        """The key file was changed. Raises ConfigError: nothing was taken over."""
        self.replace(Keys(self._allowed, self._path))

    def listen(self, listener: Callable[[], None]) -> None:
        """``listener`` is called after each `replace`."""
        self._listeners[listener] = None

    def forget(self, listener: Callable[[], None]) -> None:
        """Undo :meth:`listen`."""
        self._listeners.pop(listener, None)


# --- the key file


def read_key_file(path: Path) -> list[StoredKey]:
    """The keys of a file.

    Raises:
        ConfigError: it cannot be read, or names the line that is wrong.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"key file {path}: not a regular file")  # reading a pipe could take for ever
        if status.st_size > KEY_FILE_BYTES_MAX:
            raise ConfigError(f"key file {path}: larger than {KEY_FILE_BYTES_MAX} bytes")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        made = f"`logtool keys add NAME --file {shlex.quote(str(path))}` makes it, with a key"
        raise ConfigError(f"key file {path} ([blipmq] key_file) is not there; {made}") from None
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"key file {path}: {error}") from None
    keys: list[StoredKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key = _from_line(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"key file {path}, line {number}: not a key ({error!r})") from None
        if any(other.identity.name == key.identity.name for other in keys):
            raise ConfigError(f"key file {path}, line {number}: a second key named {key.identity.name!r}")
        keys.append(key)
    return keys


def _from_line(fields: dict[str, Any]) -> StoredKey:
    salt, digest = bytes.fromhex(fields["salt"]), bytes.fromhex(fields["hash"])
    if len(salt) != SALT_BYTES or len(digest) != DIGEST_BYTES:
        raise ValueError(f"salt of {SALT_BYTES} and hash of {DIGEST_BYTES} bytes expected")
    name = fields["name"]
    if not isinstance(name, str) or not name:
        raise ValueError("name missing")
    identity = Identity(name, _globs(fields.get("publish", [])), _globs(fields.get("subscribe", [])), salt + digest)
    return StoredKey(identity, salt, digest, int(fields.get("created", 0)))


def _globs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(glob, str) for glob in value):
        raise ValueError("rights are a list of patterns")
    return tuple(value)


def key_item(key: StoredKey) -> dict[str, Any]:
    """A key as a document: ``{"name", "publish", "subscribe", "created_ms"}``; nothing secret is in it."""
    return {
        "name": key.identity.name,
        "publish": list(key.identity.publish),
        "subscribe": list(key.identity.subscribe),
        "created_ms": 1000 * key.created_s,
    }


def write_key_file(path: Path, keys: Iterable[StoredKey]) -> None:
    """Replace a key file, durably and in one step; its owner and mode stay. A new one is readable by its owner only.

    Raises:
        OSError: nothing was changed.
    """
    lines = [
        json.dumps(
            {
                "name": key.identity.name,
                "salt": key.salt.hex(),
                "hash": key.digest.hex(),
                "publish": list(key.identity.publish),
                "subscribe": list(key.identity.subscribe),
                "created": key.created_s,
            }
        )
        for key in keys
    ]
    content = "".join(line + "\n" for line in lines).encode()
    write_new_file(SystemFiles(), path.resolve(), content, KEY_FILE_MODE)


def add_key(
    path: Path, name: str, publish: Sequence[str] = EVERYTHING, subscribe: Sequence[str] = EVERYTHING, key: str = ""
) -> str:
    """Add a key to a file (made when missing) and return it: it is not stored, so this is the only time it is seen.

    Args:
        key: one's own, of at least 20 characters; empty: a new random one.

    Raises:
        ConfigError: the name is taken, the key is too short, or the file is not a key file.
    """
    if not name or not name.isprintable():
        raise ConfigError("a key needs a name, of characters that can be shown")
    keys = read_key_file(path) if path.exists() else []
    if any(stored.identity.name == name for stored in keys):
        raise ConfigError(f"key file {path}: there is a key named {name!r}; revoke it first")
    if key and len(key) < API_KEY_CHARS_MIN:
        raise ConfigError(f"a key of one's own needs at least {API_KEY_CHARS_MIN} characters: too short to be safe")
    key = key or secrets.token_urlsafe(32)
    salt = secrets.token_bytes(SALT_BYTES)
    identity = Identity(name, tuple(publish), tuple(subscribe))
    write_key_file(path, [*keys, StoredKey(identity, salt, digest_of(key.encode(), salt), int(time.time()))])
    return key


def revoke_key(path: Path, name: str) -> bool:
    """Take a key out of a file; False: there was none of that name.

    Raises:
        ConfigError: the file is not a key file.
    """
    keys = read_key_file(path)
    left = [stored for stored in keys if stored.identity.name != name]
    if len(left) == len(keys):
        return False
    write_key_file(path, left)
    return True

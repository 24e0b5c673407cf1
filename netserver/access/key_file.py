"""The access file: who there is, how they are known, what they may do; kept by ``logtool keys``.

One JSON object a line, a name with one way or several to be known by::

    {"name": "billing", "salt": "<hex>", "hash": "<hex>", "publish": ["orders.*"], "subscribe": ["*"], "created": ...}
    {"name": "shop", "certificates": ["CN=shop-*"], "publish": ["orders.*"], "quotas": {"bytes_in_per_s": 1000000}}
    {"name": "lan", "networks": ["10.0.0.0/8"], "subscribe": ["*"], "create": [], "listeners": ["figg", "tank"]}
    {"name": "others", "anyone": true, "subscribe": ["public.*"]}

Further fields: ``manage`` (globs), ``role`` (admin HTTP), ``previous`` (salt and hash of the key before a rotation,
which counts until the next one). Without ``create`` whoever publishes or subscribes makes topics by first use.

Hashing. Keys that we make are 256 random bits, so nobody can guess one from its hash, and BLAKE2b with a salt is
enough. A slow hash (scrypt) would protect guessable keys in a stolen file, but here each AUTH of a stranger would cost
the server 50 ms and 16 MiB: one connection could stop it. So keys of one's own choice have to be long. New keys take
the salt that the file has: a key is then hashed once to be compared with all of them.
"""

from __future__ import annotations

import json
import secrets
import shlex
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from engine.files.system import SystemFiles, write_new_file
from netserver.access.rights import EVERYTHING, QUOTA_NAMES, UNLIMITED, Identity, Quotas, Role
from netserver.errors import ConfigError
from netserver.limits import API_KEY_CHARS_MIN, KEY_FILE_BYTES_MAX, KEY_GLOBS_MAX

DIGEST_BYTES: Final = 32
SALT_BYTES: Final = 16
KEY_FILE_MODE: Final = 0o600
LISTENERS: Final = ("figg", "reliably", "tank", "blipmq", "fujin", "kafka", "admin")
GLOBS: Final = ("publish", "subscribe", "create", "manage", "listeners", "certificates", "networks")
SECRETS: Final = frozenset({"salt", "hash", "previous"})
FIELDS: Final = frozenset({"name", "created", "role", "anyone", "quotas", *GLOBS, *SECRETS})


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A line of the file.

    Attributes:
        salt, digest: of its key; empty: it has none.
        previous: salt and digest of the key before; None: only one counts.
    """

    identity: Identity
    salt: bytes = b""
    digest: bytes = b""
    created_s: int = 0
    previous: tuple[bytes, bytes] | None = None


def digest_of(key: bytes, salt: bytes) -> bytes:
    """What is kept of a key."""
    return blake2b(key, digest_size=DIGEST_BYTES, salt=salt).digest()


def read_key_file(path: Path) -> list[StoredKey]:
    """The lines of a file.

    Raises:
        ConfigError: it cannot be read, or names the line that is wrong.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"key file {path}: not a regular file")  # reading a pipe could take for ever
        if status.st_size > KEY_FILE_BYTES_MAX:
            raise ConfigError(f"key file {path}: larger than {KEY_FILE_BYTES_MAX} bytes")
        if status.st_mode & stat.S_IWOTH:
            raise ConfigError(f"key file {path}: everybody may write it, and so take any right: chmod o-w it")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        made = f"`logtool keys add NAME --file {shlex.quote(str(path))}` makes it, with a key"
        raise ConfigError(f"key file {path} is not there; {made}") from None
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"key file {path}: {error}") from None
    keys: list[StoredKey] = []
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key = _from_line(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            raise ConfigError(f"key file {path}, line {number}: not a key ({error!r})") from None
        if key.identity.name in names:
            raise ConfigError(f"key file {path}, line {number}: a second key named {key.identity.name!r}")
        names.add(key.identity.name)
        keys.append(key)
    return keys


def _from_line(fields: dict[str, Any]) -> StoredKey:
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"unknown field {min(unknown)!r}")  # a right that is misspelt must not be a right that is lost
    name = fields["name"]
    if not isinstance(name, str) or not name:
        raise ValueError("name missing")
    salt, digest = _proof(fields) if "salt" in fields or "hash" in fields else (b"", b"")
    identity = Identity(
        name,
        _texts(fields.get("publish", [])),
        _texts(fields.get("subscribe", [])),
        None if fields.get("create") is None else _texts(fields["create"]),
        _texts(fields.get("manage", [])),
        Role(fields["role"]) if fields.get("role") else "",
        _texts(fields.get("listeners", [])),
        _texts(fields.get("certificates", [])),
        _texts(fields.get("networks", [])),
        fields.get("anyone", False) is True,
        _quotas(fields.get("quotas", {})),
        salt + digest,
    )
    for network in identity.networks:
        ip_network(network)
    if wrong := set(identity.listeners) - set(LISTENERS):
        raise ValueError(f"no listener {min(wrong)!r}")
    if not (digest or identity.certificates or identity.networks or identity.is_anyone):
        raise ValueError("nothing to be known by: salt and hash, certificates, networks or anyone expected")
    previous = _proof(fields["previous"]) if fields.get("previous") is not None else None
    return StoredKey(identity, salt, digest, int(fields.get("created", 0)), previous)


def _proof(fields: dict[str, Any]) -> tuple[bytes, bytes]:
    salt, digest = bytes.fromhex(fields["salt"]), bytes.fromhex(fields["hash"])
    if len(salt) != SALT_BYTES or len(digest) != DIGEST_BYTES:
        raise ValueError(f"salt of {SALT_BYTES} and hash of {DIGEST_BYTES} bytes expected")
    return salt, digest


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("rights are a list of patterns")
    if len(value) > KEY_GLOBS_MAX:
        raise ValueError(f"more than {KEY_GLOBS_MAX} patterns")
    return tuple(value)


def _quotas(value: object) -> Quotas:
    if not isinstance(value, dict) or not all(isinstance(n, int) and 0 <= n < 2**62 for n in value.values()):
        raise ValueError("quotas are numbers by name")
    if unknown := value.keys() - set(QUOTA_NAMES):
        raise ValueError(f"no quota {min(unknown)!r}; there are {', '.join(QUOTA_NAMES)}")
    return Quotas(**value) if value else UNLIMITED


def key_item(key: StoredKey) -> dict[str, Any]:
    """A line as a document; nothing secret is in it."""
    document = _document(key)
    ways = ["key"] * bool(key.digest) + ["previous key"] * (key.previous is not None)
    ways += [*key.identity.certificates, *key.identity.networks] + ["anyone"] * key.identity.is_anyone
    return document | {"known_by": ways, "created_ms": 1000 * key.created_s}


def _document(key: StoredKey) -> dict[str, Any]:
    identity = key.identity
    found: dict[str, Any] = {
        "name": identity.name,
        "publish": list(identity.publish),
        "subscribe": list(identity.subscribe),
    }
    if identity.create is not None:
        found["create"] = list(identity.create)
    for name in ("manage", "listeners", "certificates", "networks"):
        if getattr(identity, name):
            found[name] = list(getattr(identity, name))
    if identity.role:
        found["role"] = str(identity.role)
    if identity.is_anyone:
        found["anyone"] = True
    quotas = {name: getattr(identity.quotas, name) for name in QUOTA_NAMES if getattr(identity.quotas, name)}
    return found | ({"quotas": quotas} if quotas else {})


def _line(key: StoredKey) -> str:
    fields = _document(key) | {"created": key.created_s}
    if key.digest:
        fields |= {"salt": key.salt.hex(), "hash": key.digest.hex()}
    if key.previous is not None:
        fields["previous"] = {"salt": key.previous[0].hex(), "hash": key.previous[1].hex()}
    return json.dumps(fields) + "\n"


def write_key_file(path: Path, keys: Iterable[StoredKey]) -> None:
    """Replace a key file, durably and in one step; its owner and mode stay. A new one is readable by its owner only.

    Raises:
        OSError: nothing was changed.
    """
    write_new_file(SystemFiles(), path.resolve(), "".join(map(_line, keys)).encode(), KEY_FILE_MODE)


def add_key(
    path: Path, name: str, publish: Sequence[str] = EVERYTHING, subscribe: Sequence[str] = EVERYTHING, key: str = ""
) -> str:
    """Add a key to a file (made when missing) and return it: it is not stored, so this is the only time it is seen.

    Args:
        key: one's own, of at least 20 characters; empty: a new random one.

    Raises:
        ConfigError: the name is taken, the key is too short, or the file is not a key file.
    """
    return add_identity(path, {"name": name, "publish": list(publish), "subscribe": list(subscribe)}, key)


def add_identity(path: Path, fields: dict[str, Any], key: str = "") -> str:
    """Add a line to a file (made when missing); the key, if it is to have one: without another way to be known by.

    Args:
        fields: as in the file, without salt and hash.

    Raises:
        ConfigError: as `add_key`, or the fields make no line.
    """
    name = fields.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError("a key needs a name, of characters that can be shown")
    keys = read_key_file(path) if path.exists() else []
    if any(stored.identity.name == name for stored in keys):
        raise ConfigError(f"key file {path}: there is a key named {name!r}; revoke it first")
    fields = fields | {"created": int(time.time())}
    if key or not any(fields.get(way) for way in ("certificates", "networks", "anyone")):
        key, salt, digest = _new_key(keys, key)
        fields |= {"salt": salt.hex(), "hash": digest.hex()}
    try:
        added = _from_line(fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"key {name!r}: {error}") from None
    write_key_file(path, [*keys, added])
    return key


def _new_key(keys: Sequence[StoredKey], key: str = "") -> tuple[str, bytes, bytes]:
    if key and len(key) < API_KEY_CHARS_MIN:
        raise ConfigError(f"a key of one's own needs at least {API_KEY_CHARS_MIN} characters: too short to be safe")
    key = key or secrets.token_urlsafe(32)
    # One salt for all keys of a file: whoever shows one is looked for by a single hash, however many keys there are.
    salt = next((stored.salt for stored in reversed(keys) if stored.salt), b"") or secrets.token_bytes(SALT_BYTES)
    return key, salt, digest_of(key.encode(), salt)


def rotate_key(path: Path, name: str, *, keeps_old: bool = True) -> str:
    """Give a name another key and return it; the one before counts until the next rotation, unless it is not kept.

    Raises:
        ConfigError: the file is not a key file.
        KeyError: there is no key of that name.
    """
    keys = read_key_file(path)
    at = next((at for at, stored in enumerate(keys) if stored.identity.name == name and stored.digest), None)
    if at is None:
        raise KeyError(name)
    old = keys[at]
    key, salt, digest = _new_key(keys)
    keys[at] = StoredKey(
        replace(old.identity, proof=salt + digest),
        salt,
        digest,
        int(time.time()),
        (old.salt, old.digest) if keeps_old else None,
    )
    write_key_file(path, keys)
    return key


def revoke_key(path: Path, name: str) -> bool:
    """Take a name out of a file; False: there was none.

    Raises:
        ConfigError: the file is not a key file.
    """
    keys = read_key_file(path)
    left = [stored for stored in keys if stored.identity.name != name]
    if len(left) == len(keys):
        return False
    write_key_file(path, left)
    return True

"""A bucket of S3, or of what speaks like it, through obstore: calls wait for their answer without the interpreter lock.

What obstore says is translated here, and nothing is decided. Conditional writes are sent once: a library that repeats
them takes its own first attempt for somebody else's. Reads are repeated by it. A bucket belongs to the process that
opened it: its threads are gone in a fork, and a call there would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engine.errors import TooLarge
from engine.remote.store import Absent, Bytes, Denied, Described, Refused, Stored, StoreError, Unclear

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_DENIED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestExpired", "NoSuchBucket")
"""What S3 says, with status 400 or 404, where trying again or looking for an object helps nobody."""
_LINE_CHARS = 300


class Bucket:
    """Objects below one prefix; see `engine.remote.store.ObjectStore`."""

    def __init__(self, once: ObjectStore, again: ObjectStore) -> None:
        """The same place twice: for what is sent once, and for what may be repeated."""
        import obstore  # of the extra `remote`

        self._obstore = obstore
        self._once = once
        self._again = again

    @classmethod
    def open(cls, url: str, config: Mapping[str, Any], timeout_s: float) -> Bucket:
        """The bucket and prefix of a URL, ``s3://bucket/prefix``; `config` as obstore has it, credentials by default
        from where the provider's tools look for them. Nothing is asked yet.

        Raises:
            ImportError: the extra `remote` is not installed.
            Denied: there can be no bucket at this URL, or the configuration is not known.
        """
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        client: Any = {"timeout": timedelta(seconds=timeout_s), "connect_timeout": timedelta(seconds=timeout_s)}
        if str(config.get("endpoint", "")).startswith("http://"):
            client["allow_http"] = True
        known: Any = dict(config)
        never: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)}
        patient: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=2 * timeout_s)}
        try:
            once = from_url(url, config=known, client_options=client, retry_config=never)
            again = from_url(url, config=known, client_options=client, retry_config=patient)
        except (BaseError, ValueError, TypeError) as error:
            raise Denied(f"no bucket can be at this URL: {_line(error)}") from error
        return cls(once, again)

    def put_if_absent(self, name: str, content: Bytes) -> str:
        """See `ObjectStore`."""
        with self._told(name, absent=Refused):
            result: Any = self._obstore.put(self._once, name, content, mode="create", use_multipart=False)
        return _tag(result)

    def put_if_match(self, name: str, content: Bytes, tag: str) -> str:
        """See `ObjectStore`."""
        with self._told(name, absent=Refused):
            mode: Any = {"e_tag": tag}  # without a version: None there is a TypeError
            result: Any = self._obstore.put(self._once, name, content, mode=mode, use_multipart=False)
        return _tag(result)

    def get(self, name: str, size_max: int) -> Stored:
        """See `ObjectStore`."""
        with self._told(name):
            result: Any = self._obstore.get(self._again, name)
            if result.meta["size"] > size_max:
                raise TooLarge(f"{name} has {result.meta['size']} bytes", size_max)
            return Stored(bytes(result.bytes()), _tag(result.meta))

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """See `ObjectStore`."""
        with self._told(name):
            return bytes(self._obstore.get_range(self._again, name, start=begin, end=end))

    def describe(self, name: str) -> Described:
        """See `ObjectStore`."""
        with self._told(name):
            return _described(self._obstore.head(self._again, name))

    def list_below(self, folder: str) -> list[Described]:
        """See `ObjectStore`."""
        with self._told(folder):
            pages: Any = self._obstore.list(self._again, prefix=folder.removesuffix("/"))
            return [_described(meta) for page in pages for meta in page]

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        try:
            with self._told(name):
                self._obstore.delete(self._again, name)
        except Absent:
            return

    @contextmanager
    def _told(self, name: str, absent: type[StoreError] = Absent) -> Iterator[None]:
        """Errors of the library as ours. 404 of a write: there is nothing that could have the tag."""
        errors = self._obstore.exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise self._kind(error, absent)(f"{name}: {_line(error)}") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise self._kind(error, Refused)(f"{name}: {_line(error)}") from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, errors.NotSupportedError) as error:
            raise Denied(f"{name}: {_line(error)}") from error
        except errors.BaseError as error:
            raise self._kind(error, Unclear)(f"{name}: {_line(error)}") from error

    @staticmethod
    def _kind(error: Exception, usual: type[StoreError]) -> type[StoreError]:
        return Denied if any(word in str(error) for word in _DENIED) else usual


def _described(meta: Any) -> Described:
    return Described(meta["path"], meta["size"], _tag(meta), int(meta["last_modified"].timestamp() * 1000))


def _tag(meta: Any) -> str:
    tag = meta["e_tag"]
    if not tag:
        raise Denied("the store gives its objects no tags (ETag), so no write can be conditional")
    return str(tag)


def _line(error: Exception) -> str:
    """The first line, as the library adds its own structures on many more; before it what S3 calls it, if we know."""
    text = str(error)
    code = next((f"{word}: " for word in _DENIED if word in text), "")
    return code + text.partition("\n")[0][:_LINE_CHARS]

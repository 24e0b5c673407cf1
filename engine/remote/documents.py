"""JSON documents in object storage that prove themselves: one form only, a hash inside, strict reading.

A document is an object with the fields ``format`` and ``hash``, in every version. It is written with sorted keys and
without blanks; ``hash`` is the xxh3-64, in 16 hexadecimal digits, of the document without that field. Content of any
other form counts as damaged, so the same document always has the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import xxhash

from engine.errors import Corrupt, TooLarge, UnsupportedFormat, named
from engine.remote.limits import NUMBER_MAX

FORMAT = 1


def pack_document(values: Mapping[str, Any], size_max: int) -> bytes:
    """The bytes of a document. Raises TooLarge."""
    document = {**values, "format": FORMAT}
    content = _canonical({**document, "hash": _hash(document)})
    if len(content) > size_max:
        raise TooLarge(f"a document of {len(content)} bytes", size_max)
    return content


def unpack_document(content: bytes | memoryview, name: str, size_max: int) -> Fields:
    """The fields of a document, without ``format`` and ``hash``.

    Raises:
        Corrupt: damaged, or larger than it may be.
        UnsupportedFormat: whole, and of a format that this version does not know.
    """
    if len(content) > size_max:
        raise Corrupt(name, 0, f"{len(content)} bytes; at most {size_max} are allowed")
    try:
        document = json.loads(bytes(content))
        whole = isinstance(document, dict) and _canonical(document) == content
    except (ValueError, RecursionError) as problem:
        raise Corrupt(name, 0, f"not a document: {named(problem)}") from problem
    if not whole or document.pop("hash", None) != _hash(document):
        raise Corrupt(name, 0, "the document is damaged (form or checksum)")
    found = document.pop("format", None)
    if found != FORMAT or isinstance(found, bool):
        raise UnsupportedFormat(f"{name} has format {found!r}; this version reads format {FORMAT}")
    return Fields(document, name, "")


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(document: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(_canonical(document))


class Fields:
    """An object of a document. Each field is taken once, with what it may be; none may be left in the end.

    Raises Corrupt (its methods): a field is missing, unknown, or not what it has to be.
    """

    def __init__(self, values: dict[str, Any], name: str, where: str) -> None:
        self._values = dict(values)
        self._name = name
        self._where = where

    def take(self, key: str) -> Any:
        """Any value."""
        if key not in self._values:
            self.refuse(f"{self._where}{key} is missing")
        return self._values.pop(key)

    def number(self, key: str, low: int = 0, high: int = NUMBER_MAX) -> int:
        """A whole number in low..high."""
        value = self.take(key)
        if type(value) is not int or not low <= value <= high:
            self.refuse(f"{self._where}{key} is not a number from {low} to {high}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.take(key)
        if type(value) is not bool:
            self.refuse(f"{self._where}{key} is neither true nor false")
        return value

    def text(self, key: str, size_max: int) -> str:
        """Text of up to `size_max` bytes."""
        value = self.take(key)
        if type(value) is not str or len(value.encode(errors="surrogatepass")) > size_max:
            self.refuse(f"{self._where}{key} is not text of up to {size_max} bytes")
        return value

    def hexadecimal(self, key: str, digits: int | None = None, digits_max: int = 0) -> str:
        """Lower-case hexadecimal digits: so many, or an even number up to `digits_max`."""
        value = self.take(key)
        count = f"{{{digits}}}" if digits is not None else f"{{0,{digits_max}}}"
        if type(value) is not str or not re.fullmatch(f"[0-9a-f]{count}", value) or len(value) % 2:
            self.refuse(f"{self._where}{key} does not have the hexadecimal digits that it has to have")
        return value

    def is_null(self, key: str) -> bool:
        """Whether it is null, which then counts as taken."""
        if self._values.get(key, self) is not None:
            return False
        self.take(key)
        return True

    def object(self, key: str) -> Fields:
        """An object."""
        return self._object(self.take(key), key)

    def objects(self, key: str, count_max: int) -> list[Fields]:
        """A list of up to `count_max` objects."""
        value = self.take(key)
        if type(value) is not list or len(value) > count_max:
            self.refuse(f"{self._where}{key} is not a list of up to {count_max}")
        return [self._object(item, f"{key}[{index}]") for index, item in enumerate(value)]

    def named_objects(self, key: str, count_max: int) -> dict[str, Fields]:
        """An object of up to `count_max` objects."""
        fields = self.object(key)
        if len(fields._values) > count_max:
            self.refuse(f"{self._where}{key} has more than {count_max} entries")
        return {name: fields.object(name) for name in list(fields._values)}

    def texts(self, key: str, count_max: int, size_max: int) -> dict[str, str]:
        """An object of up to `count_max` texts."""
        fields = self.object(key)
        if len(fields._values) > count_max or any(len(name) > size_max for name in fields._values):
            self.refuse(f"{self._where}{key} has more, or longer names, than it may have")
        return {name: fields.text(name, size_max) for name in list(fields._values)}

    def end(self) -> None:
        """To be called when all fields are taken: no other one may be there."""
        if self._values:
            self.refuse(f"{self._where}{min(self._values)[:80]} is not known")

    def refuse(self, reason: str) -> NoReturn:
        """Raises Corrupt with a reason."""
        raise Corrupt(self._name, None, reason)

    def _object(self, value: Any, key: str) -> Fields:
        if type(value) is not dict:
            self.refuse(f"{self._where}{key} is not an object")
        return Fields(value, self._name, f"{self._where}{key}.")

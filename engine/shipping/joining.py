"""How a start comes to know what is stored: is the store fit, whose is the lineage, and what do its pages say."""

from __future__ import annotations

import xxhash

from engine.errors import Corrupt
from engine.remote.catalog import Catalog, ObjectRef, joined, unpack_page
from engine.remote.limits import CATALOG_BYTES_MAX, COMPARE_BYTES
from engine.remote.piece import HEADER_BYTES, Table, read_table, table_bytes
from engine.remote.store import Absent
from engine.remote.writes import HeadWriter
from engine.shipping.asking import Asking
from engine.shipping.manifest import Manifest

_FIRST_BYTES = 64 << 10


def stored_manifest(asking: Asking, writer: HeadWriter) -> Manifest:
    """What a head and its pages say is stored.

    Raises:
        Corrupt, UnsupportedFormat: an object is damaged, or not there. Unclear, Denied: call it again.
    """
    head = writer.head
    assert head is not None, "it is stored"
    pages: list[Catalog] = []
    for ref in head.catalog:
        page = unpack_page(_content(asking, ref), str(ref.name))
        if page.lineage != head.lineage:
            raise Corrupt(str(ref.name), None, f"a page of the lineage {page.lineage}")
        pages.append(page.catalog)
    pieces = joined((*pages, head.recent)).pieces
    return Manifest.of(head, pages, (_table(asking, ref, head.lineage) for ref in pieces))


def _content(asking: Asking, ref: ObjectRef) -> bytes:
    try:
        content: bytes = asking.get(str(ref.name), CATALOG_BYTES_MAX).content
    except Absent as error:
        raise Corrupt(str(ref.name), None, "the object is not there, though the head names it") from error
    if len(content) != ref.size_bytes or xxhash.xxh3_64_hexdigest(content) != ref.hash:
        raise Corrupt(str(ref.name), None, "not the object that the head names (checksum)")
    return content


def _table(asking: Asking, ref: ObjectRef, lineage: str) -> Table:
    name = str(ref.name)
    try:
        content: bytes = asking.get_range(name, 0, min(_FIRST_BYTES, ref.size_bytes))
        size = table_bytes(content[:HEADER_BYTES], name)
        while len(content) < min(size, ref.size_bytes):
            content += asking.get_range(name, len(content), min(size, len(content) + COMPARE_BYTES))
    except Absent as error:
        raise Corrupt(name, None, "the object is not there, though the head names it") from error
    return read_table(content[:size], name, lineage)

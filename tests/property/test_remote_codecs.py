"""Objects in object storage as properties: what goes in comes out, any change of the bytes is refused, joins agree."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Corrupt, UnsupportedFormat
from engine.remote.catalog import Catalog, Page, joined, pack_page, unpack_page
from engine.remote.documents import pack_document
from engine.remote.head import Head
from engine.remote.piece import HEADER_BYTES, Piece, pack_piece, piece_ref, read_table, table_bytes, unpack_piece
from tests.remote_objects import LINEAGE, catalog, catalogs, head, heads, piece, pieces

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
CASES = settings(max_examples=5000 if NIGHTLY else 12, deadline=None)


def outcome(function: Callable[[], Any]) -> Any:
    """What a function gives, or that it refused with an error of ours."""
    try:
        return function()
    except (Corrupt, UnsupportedFormat):
        return "refused"


@CASES
@given(heads())
def test_a_head_comes_back(found: Head) -> None:
    assert Head.unpack(found.pack()) == found


@CASES
@given(catalogs(), st.integers(1, 99))
def test_a_page_comes_back(found: Catalog, version: int) -> None:
    page = Page(LINEAGE, 1, version, found)
    assert unpack_page(pack_page(page), "catalog/x") == page


@CASES
@given(pieces())
def test_a_piece_comes_back(found: Piece) -> None:
    content = pack_piece(found)
    read = unpack_piece(content, str(found.name), LINEAGE)
    assert read == found
    assert piece_ref(found, content).size_bytes == len(content)
    end = table_bytes(content[:HEADER_BYTES], "x")
    assert read_table(content[:end], str(found.name), LINEAGE).sections == found.sections


@settings(max_examples=20_000 if NIGHTLY else 50, deadline=None)
@given(st.data())
def test_a_changed_byte_is_refused(data: st.DataObject) -> None:
    """Each field of each kind has a hash above it."""
    content, unpack = data.draw(
        st.sampled_from(
            [
                (head().pack(), lambda changed: Head.unpack(changed)),
                (pack_page(Page(LINEAGE, 1, 2, catalog())), lambda changed: unpack_page(changed, "x")),
                (pack_piece(piece()), lambda changed: unpack_piece(changed, str(piece().name), LINEAGE)),
            ]
        )
    )
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert outcome(lambda: unpack(bytes(changed))) == "refused"
    assert outcome(lambda: unpack(content[:at])) == "refused"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=20_000 if NIGHTLY else 50, deadline=None)
@given(st.data())
def test_any_value_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    """With a right hash: whoever may write to the bucket can do no more than have a document refused."""
    document = json.loads(head().pack())
    place, way = document, []
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        way.append(key)
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = data.draw(json_values)
    document.pop("hash", None)
    if document.pop("format", None) == 1:
        found = outcome(lambda: Head.unpack(pack_document(document, 1 << 20)))
        assert found == "refused" or found.pack() == pack_document(document, 1 << 20)


@CASES
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(content: bytes) -> None:
    for unpack in (
        lambda: Head.unpack(content),
        lambda: unpack_page(content, "x"),
        lambda: unpack_piece(content, "x", LINEAGE),
        lambda: unpack_piece(pack_piece(piece())[:16] + content, "x", LINEAGE),
    ):
        assert outcome(unpack) == "refused"


@CASES
@given(st.lists(catalogs(9), max_size=4), st.integers(0, 4))
def test_pages_may_be_joined_in_any_steps(found: list[Catalog], at: int) -> None:
    whole = joined(found)
    assert joined([joined(found[:at]), joined(found[at:])]) == whole
    assert joined([whole]) == whole

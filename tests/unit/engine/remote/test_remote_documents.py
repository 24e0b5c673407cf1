"""Heads, pages and names: their bytes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import Corrupt, TooLarge, UnsupportedFormat
from engine.remote import documents
from engine.remote.catalog import (
    Catalog,
    Done,
    Page,
    PartitionKey,
    Tail,
    joined,
    pack_page,
    unpack_page,
)
from engine.remote.documents import pack_document, unpack_document
from engine.remote.head import Head, problem_of_next
from engine.remote.limits import CONFIG_ITEMS_MAX, HEAD_BYTES_MAX
from engine.remote.names import CATALOG, PIECES, Versioned, parse_segment, parse_versioned, pin_name
from tests.remote_objects import LINEAGE, catalog, head, ref, segment

GOLDEN_HEAD = (
    b'{"address":"one.example:9000","ahead":16777216,"beat":3,"catalog":[{"hash":"0123456789abcdef",'
    b'"name":"catalog/0000000001-0000000000000000003-0000000000000abc","size_bytes":4096}],'
    b'"deltas":[{"hash":"0123456789abcdef","name":"pieces/0000000002-0000000000000000006-0000000000000abc",'
    b'"size_bytes":4096}],"directory_id":123456789,"done":[{"first":1,"last":4}],"epoch":2,"format":1,'
    b'"gone":[{"topic":9}],"hash":"56b582e7a8774c8d","lineage":"00112233445566778899aabbccddeeff",'
    b'"lost":[{"first":90,"last":95,"partition":0,"topic":12}],"owner":"one-4711",'
    b'"pieces":[{"hash":"0123456789abcdef","name":"pieces/0000000001-0000000000000000005-0000000000000abc",'
    b'"size_bytes":4096},{"hash":"0123456789abcdef",'
    b'"name":"pieces/0000000002-0000000000000000006-0000000000000abc","size_bytes":4096}],"released":false,'
    b'"segments":[{"first":1,"hash":"ffffffffffffffff","max_timestamp_ms":1795822592000,"next":101,"partition":0,'
    b'"path":"segments/12/0/00000000000000000001-000000000000004d.log","records":100,"segment_id":77,'
    b'"size_bytes":8192,"topic":12}],"starts":{"12/0":{"first":1}},"state":{"hash":"0123456789abcdef",'
    b'"name":"state/0000000001-0000000000000000004-0000000000000abc","size_bytes":1099511627776},'
    b'"tail":{"12/0":{"committed":150,"first":101,"position":72000,"segment":18446744073709551615}},'
    b'"topics":[{"config":{"retention_ms":"7d"},"created_ms":1795773600000,"id":12,"name":"6f7264657273ff",'
    b'"partitions":1}],"ttl_ms":10000,"version":7,"write":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'
)


def changed(**fields: Any) -> bytes:
    """The bytes of a head with some fields changed or added, and a right hash; ... leaves a field out."""
    values = json.loads(head().pack()) | fields
    values = {key: value for key, value in values.items() if value is not ... and key not in ("format", "hash")}
    return pack_document(values, 1 << 30)


def test_a_head_is_as_documented() -> None:
    assert head().pack() == GOLDEN_HEAD
    for found in (head(), replace(head(), state=None)):
        assert Head.unpack(found.pack()) == found


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"beat": ...}, "beat is missing"),
        ({"more": 1}, "more is not known"),
        ({"beat": -1}, "beat is not a number from 0"),
        ({"beat": 1 << 63}, "beat is not a number"),
        ({"beat": True}, "beat is not a number"),
        ({"beat": 1.5}, "beat is not a number"),
        ({"released": 0}, "released is neither true nor false"),
        ({"owner": "x" * 65}, "owner is not text of up to 64 bytes"),
        ({"owner": "\ud800" * 22}, "owner is not text"),
        ({"owner": 5}, "owner is not text"),
        ({"lineage": "0" * 31 + "G"}, "lineage does not have the hexadecimal digits"),
        ({"lineage": "0" * 31}, "lineage does not have"),
        ({"lineage": "0" * 32 + "\n"}, "lineage does not have"),
        ({"ttl_ms": 99}, "ttl_ms is not a number from 100"),
        ({"state": []}, "state is not an object"),
        ({"catalog": {}}, "catalog is not a list"),
        ({"catalog": [5]}, r"catalog\[0\] is not an object"),
        ({"pieces": [{"name": "pieces/1-2-3", "size_bytes": 1, "hash": "0" * 16}]}, "not one in pieces/"),
        ({"pieces": [{"name": str(ref(CATALOG).name), "size_bytes": 1, "hash": "0" * 16}]}, "not one in pieces/"),
        ({"tail": {"12": {}}}, "'12', which is no partition"),
        ({"tail": {"0/0": {}}}, "'0/0', which is no partition"),
        ({"tail": {"1/65535": {}}}, "which is no partition"),
        ({"tail": {"1/0": {"segment": 1, "first": 5, "committed": 3, "position": 1}}}, "ends before it begins"),
        ({"tail": []}, "tail is not an object"),
        ({"lost": [{"topic": 1, "partition": 0, "first": 5, "last": 4}]}, "end before they begin"),
        ({"done": [{"first": 5, "last": 4}]}, "ends before it begins"),
        ({"version": 5, "done": []}, "names an object of a later head"),
        ({"epoch": 1}, "names an object of a later head"),
    ],
)
def test_a_head_that_is_not_right_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        Head.unpack(changed(**fields))


def test_objects_are_named_in_order_and_once() -> None:
    rows = json.loads(head().pack())["pieces"]
    for wrong in (rows[::-1], [rows[0], rows[0]]):
        with pytest.raises(Corrupt, match="pieces is not in order"):
            Head.unpack(changed(pieces=wrong))


@pytest.mark.parametrize("fields", [{"next": 0}, {"path": "segments/12/0/x.log"}, {"segment_id": 78}, {"topic": 13}])
def test_a_segment_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    row = json.loads(head().pack())["segments"][0] | fields
    with pytest.raises(Corrupt, match="contradict each other"):
        Head.unpack(changed(segments=[row]))


def test_settings_of_a_topic_have_limits() -> None:
    row = json.loads(head().pack())["topics"][0]
    for config in ({str(number): "" for number in range(CONFIG_ITEMS_MAX + 1)}, {"x" * 1025: ""}):
        with pytest.raises(Corrupt, match="config has more, or longer names"):
            Head.unpack(changed(topics=[row | {"config": config}]))
    with pytest.raises(Corrupt, match="is not text"):
        Head.unpack(changed(topics=[row | {"config": {"x": 5}}]))


def test_rows_have_limits() -> None:
    fields = unpack_document(head().pack(), "head", HEAD_BYTES_MAX)
    with pytest.raises(Corrupt, match="starts has more than 0 entries"):
        fields.named_objects("starts", 0)
    with pytest.raises(Corrupt, match="pieces is not a list of up to 1"):
        fields.objects("pieces", 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"5",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":1,"a":1}',
        b'{"format":1,"hash":"0123456789abcdef"}',
        b'{"format":1,"hash":5}',
        GOLDEN_HEAD.replace(b":", b": ", 1),
        GOLDEN_HEAD + b"\n",
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
)
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(Corrupt):
        Head.unpack(content)


@pytest.mark.parametrize("version", [2, True, "1", None])
def test_another_format_is_named(monkeypatch: pytest.MonkeyPatch, version: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(documents, "FORMAT", version)
        content = pack_document({}, 100)
    with pytest.raises(UnsupportedFormat, match="this version reads format 1"):
        unpack_document(content, "head", 100)


def test_a_large_head_is_not_written() -> None:
    tails = {PartitionKey(12, index): Tail(1, 1, 0, 72) for index in range(5000)}
    with pytest.raises(TooLarge):
        replace(head(), recent=Catalog(tail=tails)).pack()


def test_a_head_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(Corrupt):
        replace(head(), beat=-1).pack()
    with pytest.raises(ValueError, match="reads as another one"):
        replace(head(), recent=replace(catalog(), gone=[9])).pack()  # type: ignore[arg-type]


def test_a_page_comes_back_and_is_strict() -> None:
    page = Page(LINEAGE, 2, 7, catalog())
    content = pack_page(page)
    assert unpack_page(content, "catalog/x") == page
    values = {key: value for key, value in json.loads(content).items() if key not in ("format", "hash")}
    with pytest.raises(Corrupt, match="catalog/x: beat is not known"):
        unpack_page(pack_document(values | {"beat": 1}, 1 << 20), "catalog/x")


def test_joining_leaves_out_what_has_come_to_its_end() -> None:
    key = PartitionKey(12, 0)
    newer = Catalog(
        gone=(13,), segments=(segment(101, 201),), starts={key: 150}, done=(Done(5, 5), Done(8, 9)), tail={}
    )
    both = joined([replace(catalog(), segments=(segment(), segment(topic=13)), done=(Done(1, 4),)), newer])
    assert both.segments == (segment(101, 201),)
    assert both.gone == (9, 13)
    assert both.lost == ()
    assert both.starts == {key: 150}
    assert both.tail == catalog().tail
    assert both.pieces == (ref(version=6),)
    assert both.done == (Done(1, 5), Done(8, 9))
    assert joined([both, Catalog(gone=(12,))]) == Catalog(
        gone=(9, 13, 12), pieces=both.pieces, done=both.done, deltas=both.deltas
    )


NEXT = replace(head(), version=8, write="b" * 32)


def with_recent(**fields: Any) -> Head:
    return replace(NEXT, recent=replace(catalog(), **fields))


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (replace(NEXT, lineage="f" * 32), "another log"),
        (replace(NEXT, directory_id=1), "another log"),
        (replace(NEXT, version=9), "not the next version"),
        (replace(NEXT, write=head().write), "not the next version"),
        (replace(NEXT, epoch=4), "skips an epoch"),
        (replace(NEXT, epoch=1), "skips an epoch"),
        (replace(NEXT, owner="two"), "another primary"),
        (with_recent(topics=()), "leaves out"),
        (with_recent(gone=()), "leaves out"),
        (with_recent(segments=()), "leaves out"),
        (with_recent(starts={}), "leaves out"),
        (with_recent(tail={}), "leaves out"),
        (with_recent(lost=()), "leaves out"),
        (with_recent(pieces=()), "leaves out"),
        (with_recent(done=()), "leaves out"),
        (with_recent(deltas=()), "leaves out"),
        (with_recent(starts={PartitionKey(12, 0): 0}), "start of a log goes back"),
        (with_recent(tail={PartitionKey(12, 0): Tail((1 << 64) - 1, 101, 149, 72_000)}), "tail of partition 12/0"),
        (with_recent(tail={PartitionKey(12, 0): Tail((1 << 64) - 1, 101, 150, 71_999)}), "tail of partition 12/0"),
        (with_recent(tail={PartitionKey(12, 0): Tail((1 << 64) - 1, 100, 150, 72_000)}), "tail of partition 12/0"),
        (with_recent(tail={PartitionKey(12, 0): Tail(1, 150, 149, 0)}), "tail of partition 12/0"),
    ],
)
def test_a_head_that_cannot_follow_is_told(after: Head, problem: str) -> None:
    assert problem in (problem_of_next(head(), after) or "")


@pytest.mark.parametrize(
    "after",
    [
        NEXT,
        replace(NEXT, epoch=3, owner="two"),
        replace(NEXT, catalog=(*head().catalog, ref(CATALOG, 7)), recent=Catalog()),
        replace(NEXT, state=ref("state/", 6), recent=replace(catalog(), deltas=())),
        with_recent(pieces=(ref(version=6),), done=(Done(1, 5),)),
        with_recent(starts={PartitionKey(12, 0): 101}, segments=(), lost=()),
        with_recent(tail={PartitionKey(12, 0): Tail(1, 151, 150, 0), PartitionKey(12, 1): Tail(2, 1, 0, 72)}),
    ],
)
def test_a_head_may_follow(after: Head) -> None:
    assert problem_of_next(head(), after) is None
    after.pack()


def test_nothing_follows_a_released_head_in_its_epoch() -> None:
    released = replace(head(), released=True)
    assert "has ended" in (problem_of_next(released, NEXT) or "")
    assert problem_of_next(released, replace(NEXT, epoch=3)) is None


def test_names() -> None:
    name = Versioned(PIECES, 1, 2, 0xFF)
    assert str(name) == "pieces/0000000001-0000000000000000002-00000000000000ff"
    assert parse_versioned(str(name)) == name
    assert parse_segment(segment().path) is not None
    assert pin_name("restore-1") == "pins/restore-1"


@pytest.mark.parametrize(
    "name",
    [
        "head",
        "pieces/1-2-3",
        "pieces/4294967296-0000000000000000002-00000000000000ff",
        "pieces/0000000001-9999999999999999999-00000000000000ff",
        "pieces/0000000001-0000000000000000002-00000000000000FF",
        "pieces/0000000001-0000000000000000002-00000000000000ff\n",
        "segments/9999999999999999999/0/00000000000000000001-000000000000004d.log",
        "segments/1/65535/00000000000000000001-000000000000004d.log",
        "segments/1/0/99999999999999999999-000000000000004d.log",
        "segments/01/0/00000000000000000001-000000000000004d.log",
    ],
)
def test_other_names_are_not_taken(name: str) -> None:
    assert parse_versioned(name) is None
    assert parse_segment(name) is None


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a" * 101, "x\n"])
def test_other_pins_are_not_taken(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a pin"):
        pin_name(name)

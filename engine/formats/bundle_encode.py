# cython: annotation_typing=False
"""Encoding of whole bundles (byte table: `engine.formats.bundle`), for whoever sends or makes them ready-made."""

from __future__ import annotations

from collections.abc import Sequence

from cramjam import snappy

from engine.limits import KEY_BYTES_MAX

COMPILED = not __file__.endswith(".py")


def encode_bundle(
    values: Sequence[bytes],
    keys: Sequence[bytes] | None,
    timestamps_ms: Sequence[int],
    *,
    sparse_seqs: Sequence[int] | None = None,
    codec: int = 0,
) -> bytes:
    """The canonical (shortest) bundle of these records, without its length varint.

    Args:
        values, keys, timestamps_ms: one of each a record; ``b""`` is no key, None none at all.
        sparse_seqs: rising sequence numbers, which make it a SPARSE bundle.
        codec: 0 as it is, 1 message set compressed with snappy.

    Raises:
        ValueError: no records, lists of different lengths, a key above 255 bytes, numbers that do not rise or are
            above what the encoding can hold; another codec.
    """
    names = [b""] * len(values) if keys is None else list(keys)
    if codec not in (0, 1):
        raise ValueError(f"unknown codec {codec}")
    return encode(list(values), names, list(timestamps_ms), None if sparse_seqs is None else list(sparse_seqs), codec)


def encode(values: list[bytes], keys: list[bytes], timestamps: list[int], seqs: list[int] | None, codec: int) -> bytes:
    """`encode_bundle` of lists."""
    count = len(values)
    if not count or len(timestamps) != count or len(keys) != count:
        raise ValueError("not one value, key and timestamp for each of at least one record")
    out = bytearray([codec | (0 if seqs is None else 0x40) | (count << 2 if count < 16 else 0)])
    if count > 15:
        append_varint(out, count)
    deltas = [0] * count
    if seqs is not None:
        deltas = sparse_deltas(seqs, count)
        out += seqs[0].to_bytes(8, "little")
        if count > 1:
            append_varint(out, seqs[count - 1] - seqs[0] - 1)
    messages = bytearray() if codec else out
    for index in range(count):
        key = keys[index]
        timestamp = timestamps[index]
        inner = seqs is not None and 0 < index < count - 1
        delta = deltas[index]
        same = index > 0 and timestamp == timestamps[index - 1]
        flags = (1 if key else 0) | (2 if same else 0) | (4 if inner and not delta else 0)
        messages.append(flags)
        if inner and delta:
            append_varint(messages, delta)
        if not same:
            if not 0 <= timestamp < 1 << 64:
                raise ValueError(f"timestamp {timestamp} is not a 64-bit number")
            messages += timestamp.to_bytes(8, "little")
        if key:
            if len(key) > KEY_BYTES_MAX:
                raise ValueError("key of more than 255 bytes")
            messages.append(len(key))
            messages += key
        value = values[index]
        append_varint(messages, len(value))
        messages += value
    if codec:
        out += snappy.compress_raw(messages)
    return bytes(out)


def sparse_deltas(seqs: list[int], count: int) -> list[int]:
    """For each record, the numbers left out before it (0 for the first)."""
    if len(seqs) != count:
        raise ValueError("not one sequence number a record")
    if seqs[0] < 0 or seqs[count - 1] >= 1 << 64:
        raise ValueError("sequence numbers of more than 64 bits")
    deltas = [0] * count
    for index in range(1, count):
        deltas[index] = seqs[index] - seqs[index - 1] - 1
        if deltas[index] < 0:
            raise ValueError("sequence numbers do not rise")
    return deltas


def append_varint(out: bytearray, value: int) -> None:
    """Appends a varint. Raises ValueError if the value needs more than 32 bits."""
    if value >> 32:
        raise ValueError(f"{value} needs more than 32 bits")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)

"""Bundles and batches under random damage: any bytes decode or raise the codec's own error, in both builds alike.

Meant to run with QUINTLOG_BUILD=checked too, where an access outside a buffer is an IndexError. QUINTLOG_NIGHTLY=1
makes it 20 million bundles and batches, each time others; QUINTLOG_FUZZ_ROUNDS sets how many (13 for each round).
"""

from __future__ import annotations

import os
import random
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from engine.commit.round_writer import COMPILED
from engine.formats import batch, batch_pure, bundle, bundle_pure
from engine.formats.bundle_encode import encode_bundle
from engine.formats.record import BatchError, BundleError
from tests import fuzz_variants

pytestmark = pytest.mark.checked

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROUNDS = int(os.environ.get("QUINTLOG_FUZZ_ROUNDS", 1_600_000 if NIGHTLY else 8000 if COMPILED else 2000))
SEED = int.from_bytes(os.urandom(4)) if NIGHTLY else 0
TIME = 1_700_000_000_000
INTERESTING = (0, 1, 2, 4, 5, 7, 8, 15, 16, 0x3F, 0x40, 0x44, 0x45, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
damaged = partial(fuzz_variants.damaged, interesting=INTERESTING, distances=(10, 50, 1000))


def some_bundle(rng: random.Random, first_seq: int) -> tuple[bytes, int]:
    """A valid bundle, and the number after its last one."""
    count = rng.choice((1, 1, 2, 3, 15, 16, 17, 130, 300))
    seqs = list(range(first_seq, first_seq + count))
    sparse = rng.random() < 0.4
    if sparse:
        for index in range(1, count):
            seqs[index] = seqs[index - 1] + rng.choice((1, 1, 1, 2, 3, 200))
    data = encode_bundle(
        [rng.randbytes(rng.choice((0, 1, 5, 100, 130))) for _ in range(count)],
        [b"k" * rng.choice((0, 0, 0, 1, 255)) for _ in range(count)],
        [TIME + rng.choice((0, 0, 0, 1)) for _ in range(count)],
        sparse_seqs=seqs if sparse else None,
        codec=rng.choice((0, 1)),
    )
    return data, seqs[-1] + 1


def some_batches(rng: random.Random) -> bytes:
    made = batch.BatchWriter(bytearray(400_000), 1)
    made.begin(TIME)
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.5:
            data, _ = some_bundle(rng, made.next_seq)
            info = bundle.check_bundle(data, 0, len(data))
            first = info.first_seq if info.sparse else made.next_seq
            last = info.last_seq if info.sparse else first + info.count - 1
            made.put_bundle(data, 0, len(data), info.count, first, last, info.max_timestamp_ms, info.sparse)
        elif kind < 0.8:
            for _ in range(rng.choice((1, 20, 300))):
                made.put(b"value", 0, rng.randint(0, 5))
        else:
            made.put_record(b"value", b"key", TIME, (b"name", b"value") * rng.randint(0, 2))
    made.close_batch()
    batch.seal(made.buffer, 0, made.position, 1, 0, 0)
    return bytes(made.buffer[: made.position])


def decoded(codec: ModuleType, data: bytes) -> Any:
    try:
        info = codec.check_bundle(data, 0, len(data))
    except BundleError:
        return None
    found = codec.decode_bundle(data, 0, len(data), 1)
    assert len(found) == info.count
    return found, info.first_seq, info.last_seq, info.max_timestamp_ms


def read(codec: ModuleType, data: bytes, from_seq: int) -> Any:
    found = []
    try:
        for record in codec.records(data, from_seq=from_seq):
            found.append(record)
    except (BundleError, BatchError):
        found.append(None)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_bundles(seed: int) -> None:
    rng = random.Random(SEED + seed)
    refused = valid = 0
    for _ in range(ROUNDS // 10):
        data, _ = some_bundle(rng, rng.choice((1, 1000, 1 << 63)))
        for variant in (damaged(rng, data) for _ in range(10)):
            result = decoded(bundle, variant)
            assert decoded(bundle_pure, variant) == result, variant.hex()
            refused += result is None
            valid += result is not None
    assert refused > ROUNDS // 10
    assert valid > ROUNDS // 10
    print(f"{refused + valid} bundles, {refused} of them refused (seed {SEED + seed})")


@pytest.mark.parametrize("seed", range(4))
def test_batches(seed: int) -> None:
    rng = random.Random(SEED + seed)
    refused = 0
    for _ in range(ROUNDS // 20):
        data = some_batches(rng)
        whole = read(batch, data, 0)
        assert read(batch_pure, data, 0) == whole
        assert None not in whole
        for variant in (damaged(rng, data) for _ in range(5)):
            from_seq = rng.choice((0, 0, 1, 2, 50, 300))
            result = read(batch, variant, from_seq)
            assert read(batch_pure, variant, from_seq) == result, variant.hex()
            refused += None in result
            end, first_seq, last_seq = batch.verify(variant, 0, len(variant), 1, 0)
            assert batch_pure.verify(variant, 0, len(variant), 1, 0) == (end, first_seq, last_seq)
            assert variant[:end] == data[:end]
    assert refused > ROUNDS // 20
    print(f"{ROUNDS // 20 * 5} runs of batches, {refused} of them with damage that ends them (seed {SEED + seed})")


@pytest.mark.parametrize("seed", range(4))
def test_noise(seed: int) -> None:
    rng = random.Random(SEED + seed)
    for _ in range(ROUNDS):
        data = bytes(rng.choices(INTERESTING, k=rng.randint(0, 120)))
        assert decoded(bundle, data) == decoded(bundle_pure, data), data.hex()
        data = b"\xd9QLB\x01" + data + bytes(rng.randint(0, 40))
        assert read(batch, data, 0) == read(batch_pure, data, 0), data.hex()
        assert batch.verify(data, 0, len(data), 1, 0) == batch_pure.verify(data, 0, len(data), 1, 0) == (0, 0, 0)
    print(f"{2 * ROUNDS} pieces of noise (seed {SEED + seed})")

"""What bundles and batches cost a record, in nanoseconds: compiled as compiled code calls them, and pure.

    python -m pytest bench/test_codec.py --benchmark-columns=min,median

``ns_per_record`` in the extra information is the fastest round divided by its records.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.formats import batch, batch_pure, bundle, bundle_pure
from engine.formats.bundle_encode import encode_bundle

TIME = 1_700_000_000_000
SOURCE = bytes(range(256)) * 1024
ROOT = Path(__file__).resolve().parents[1]
SIZES = [100, 1024]


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled caller, built for this run."""
    if not batch.COMPILED:
        pytest.skip("engine.formats.batch is not compiled")
    build = pytest.importorskip("Cython.Build")
    from setuptools import Extension
    from setuptools.command.build_ext import build_ext
    from setuptools.dist import Distribution

    folder = tmp_path_factory.mktemp("caller")
    source = folder / "codec_caller.pyx"
    source.write_text((ROOT / "bench" / "codec_caller.pyx").read_text())
    extension = Extension("codec_caller", [str(source)], extra_compile_args=["-O3"])
    modules = build.cythonize([extension], include_path=[str(ROOT)], quiet=True)
    command = build_ext(Distribution({"name": "caller", "ext_modules": modules}))
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    spec = importlib.util.spec_from_file_location("codec_caller", command.get_ext_fullpath("codec_caller"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(benchmark: BenchmarkFixture, records: int, function: Callable[[], Any]) -> None:
    benchmark.pedantic(function, rounds=30, iterations=1, warmup_rounds=3)
    if benchmark.stats is not None:  # --benchmark-disable runs each once and measures nothing
        benchmark.extra_info["ns_per_record"] = round(benchmark.stats.stats.min * 1e9 / records, 1)


def count_of(size: int) -> int:
    """As many records as a read buffer of 256 KiB holds."""
    return (240 << 10) // (size + 16)


def written(codec: ModuleType, size: int) -> tuple[bytearray, int]:
    made = codec.BatchWriter(bytearray(260 << 10), 1)
    made.begin(TIME)
    for _ in range(count_of(size)):
        assert made.put(SOURCE, 0, size)
    made.close_batch()
    codec.seal(made.buffer, 0, made.position, 7, 0, 0)
    return made.buffer, made.position


both = pytest.mark.parametrize("codec", [batch, batch_pure], ids=["compiled", "pure"])
sizes = pytest.mark.parametrize("size", SIZES)


@sizes
def test_put_compiled(benchmark: BenchmarkFixture, caller: Any, size: int) -> None:
    buffer = bytearray(260 << 10)

    def put() -> None:
        made = batch.BatchWriter(buffer, 1)
        made.begin(TIME)
        caller.put(made, SOURCE, size, count_of(size))
        made.close_batch()

    run(benchmark, count_of(size), put)


@both
@sizes
def test_put_called_from_python(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer = bytearray(260 << 10)

    def put() -> None:
        made = codec.BatchWriter(buffer, 1)
        made.begin(TIME)
        for _ in range(count_of(size)):
            made.put(SOURCE, 0, size)
        made.close_batch()

    run(benchmark, count_of(size), put)


@both
@sizes
def test_put_record_called_from_python(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer = bytearray(260 << 10)
    value = SOURCE[:size]

    def put() -> None:
        made = codec.BatchWriter(buffer, 1)
        made.begin(TIME)
        for _ in range(count_of(size) - 100):
            made.put_record(value, b"key", TIME)
        made.close_batch()

    run(benchmark, count_of(size) - 100, put)


@both
@sizes
def test_seal(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer, end = written(codec, size)
    run(benchmark, count_of(size), lambda: codec.seal(buffer, 0, end, 7, 0, 0))


@both
@sizes
def test_verify(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer, end = written(codec, size)
    assert codec.verify(buffer, 0, end, 7, 0)[0] == end
    run(benchmark, count_of(size), lambda: codec.verify(buffer, 0, end, 7, 0))


@sizes
def test_cursor_compiled(benchmark: BenchmarkFixture, caller: Any, size: int) -> None:
    buffer, end = written(batch, size)
    run(benchmark, count_of(size), lambda: caller.walk(batch.RecordCursor(buffer, 0, end)))


@sizes
def test_frame_compiled(benchmark: BenchmarkFixture, caller: Any, size: int) -> None:
    buffer, end = written(batch, size)
    out = bytearray(260 << 10)
    run(benchmark, count_of(size), lambda: caller.frame(batch.RecordCursor(buffer, 0, end), out))


@both
@sizes
def test_cursor_called_from_python(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer, end = written(codec, size)

    def walk() -> None:
        cursor = codec.RecordCursor(buffer, 0, end)
        while cursor.next():
            pass

    run(benchmark, count_of(size), walk)


@both
@sizes
def test_records(benchmark: BenchmarkFixture, codec: ModuleType, size: int) -> None:
    buffer, end = written(codec, size)
    run(benchmark, count_of(size), lambda: sum(1 for _ in codec.records(buffer, 0, end)))


@pytest.mark.parametrize("packed", [0, 1], ids=["plain", "snappy"])
@pytest.mark.parametrize("count", [1, 100, 255])
def test_check_bundle_compiled(benchmark: BenchmarkFixture, caller: Any, count: int, packed: int) -> None:
    data = encode_bundle([SOURCE[:100]] * count, None, [TIME] * count, codec=packed)
    run(benchmark, count * 20, lambda: caller.check(data, 20))


@pytest.mark.parametrize("codec", [bundle, bundle_pure], ids=["compiled", "pure"])
@pytest.mark.parametrize("count", [1, 100, 255])
def test_check_bundle_called_from_python(benchmark: BenchmarkFixture, codec: ModuleType, count: int) -> None:
    data = encode_bundle([SOURCE[:100]] * count, None, [TIME] * count)

    def check() -> None:
        for _ in range(20):
            codec.check_bundle(data, 0, len(data))

    run(benchmark, count * 20, check)


@pytest.mark.parametrize("packed", [0, 1], ids=["plain", "snappy"])
def test_encode_bundle(benchmark: BenchmarkFixture, packed: int) -> None:
    run(benchmark, 255, lambda: encode_bundle([SOURCE[:100]] * 255, None, [TIME] * 255, codec=packed))

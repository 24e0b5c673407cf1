"""Hot modules are compiled once for each content, whatever the checkout, and nobody waits for it or loads half of one.

On a checkout of two tiny modules with the real build scripts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import Started

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CC", "cc")
SOURCES = {
    "base.pxd": "cdef long twice(long number)\n",
    "base.py": "def twice(number):\n    return 2 * number\n",
    "above.pxd": "from engine.base cimport twice\n\ncpdef long four_times(long number)\n",
    "above.py": (
        "import cython\n\nif not cython.compiled:\n    from engine.base import twice\n\n\n"
        "def four_times(number):\n    return twice(twice(number))\n"
    ),
    "apart.pxd": "cpdef long negative(long number)\n",
    "apart.py": "def negative(number):\n    return -number\n",
    "__init__.py": "",
}
RUN = "import engine.above; print(engine.above.four_times(3), engine.above.__file__.endswith('.py'))"
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler")
pytestmark = pytest.mark.whole
Checkout = Callable[[str], "Tree"]


class Tree:
    """A checkout: the build scripts, and a package whose modules take a second each."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.package = root / "engine"
        self.package.mkdir(parents=True)
        (root / ".ci").mkdir()
        shutil.copy(ROOT / "build_modules.py", root)
        shutil.copy(ROOT / ".ci" / "serve", root / ".ci")
        for name, text in SOURCES.items():
            (self.package / name).write_text(text)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("QUINTLOG_")}
        self.environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(root)}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=110,
        )

    def build(self, *arguments: str, **environment: str) -> str:
        """What the build says."""
        done = self.run("build_modules.py", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def libraries(self) -> dict[str, int]:
        """Each library with its inode."""
        return {path.name.partition(".")[0]: path.stat().st_ino for path in self.package.glob("*.so")}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return lambda name: Tree(tmp_path / name, tmp_path / "cache")


@pytest.mark.slow
@needs_compiler
def test_what_was_compiled_is_taken_by_its_content(checkout: Checkout) -> None:
    first, second = checkout("first"), checkout("second")
    assert "3 of 3 hot modules compiled" in first.build("require")
    assert first.run("-c", RUN).stdout == "12 False\n"
    # Another checkout, and the same one again, without a compiler: there is nothing to compile.
    assert second.build("require", CC="false") == ""
    assert second.run("-c", RUN).stdout == "12 False\n"
    before = first.libraries()
    assert first.build("require", CC="false") == ""
    assert first.libraries() == before
    # A declaration concerns who uses it; bounds checks concern all.
    pxd = first.package / "base.pxd"
    pxd.write_text(pxd.read_text() + "cdef long unused(long number)\n")
    source = first.package / "base.py"
    source.write_text(source.read_text() + "\n\ndef unused(number):\n    return 0\n")
    assert "2 of 2 hot modules compiled" in first.build("require")
    changed = {name for name, inode in first.libraries().items() if inode != before[name]}
    assert changed == {"base", "above"}
    done = first.run("build_modules.py", "require", CC="false", QUINTLOG_BUILD="checked")
    assert (done.returncode, done.stderr) == (1, "setup: no C compiler with Python's headers (gcc, python3-dev)\n")


@pytest.mark.slow
@needs_compiler
def test_half_a_library_is_never_taken(checkout: Checkout) -> None:
    tree = checkout("tree")
    tree.build("require")
    library = next(tree.package.glob("above.*.so"))
    whole = library.read_bytes()
    library.write_bytes(whole[:100])
    tree.build("require", CC="false")
    assert library.read_bytes() == whole
    # None at all, when one fails: what is compiled and what is not would not fit.
    (tree.package / "apart.py").write_text("def negative(number):\n    return unknown(number)\n")
    for path in tree.package.glob("*.so"):
        path.unlink()
    said = tree.build()
    assert "engine.apart" in said or "apart.py" in said, said
    assert "the hot modules run as plain Python, slower" in said
    assert tree.libraries() == {}
    assert tree.run("-c", RUN).stdout == "12 True\n"


def test_without_a_compiler(checkout: Checkout) -> None:
    tree = checkout("tree")
    assert "no C compiler" in tree.build(CC="false")
    assert "no C compiler" in tree.build(CC="a-compiler-that-is-not-there")
    assert tree.run("build_modules.py", "require", CC="false").returncode == 1
    done = tree.run(".ci/serve", sys.executable, "-c", "import os; print(os.environ['QUINTLOG_PURE'])", CC="false")
    assert done.stdout == "1\n"
    assert done.stderr.startswith("setup: runs as plain Python: ")
    assert "there is no C compiler" in done.stderr


@needs_compiler
def test_the_server_starts_at_once_and_the_next_one_compiled(checkout: Checkout) -> None:
    tree = checkout("tree")
    waiting = "import os, sys; print(os.environ['QUINTLOG_PURE'], flush=True); sys.stdin.read()"
    with Started(
        [sys.executable, ".ci/serve", sys.executable, "-c", waiting],
        cwd=tree.root,
        env=tree.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline() == "1\n"
        assert "compiling in the background, taken at the next start" in server.stderr.readline()
        assert "the next start takes them" in server.stderr.readline()
        assert tree.libraries() == {}  # what runs now does not get them under way
        server.communicate("")
    done = tree.run(".ci/serve", sys.executable, "-c", "import os; print(os.environ.get('QUINTLOG_PURE'));" + RUN)
    assert (done.stdout, done.stderr) == ("None\n12 False\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_compiling_ends_with_the_server(checkout: Checkout, tmp_path: Path, number: signal.Signals) -> None:
    """Whatever ends the server: no compiler is left, nor what it wrote."""
    tree = checkout("tree")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    started = tmp_path / "started"
    os.mkfifo(started)
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *" -E "*) exit 0 ;; esac\necho >"$STARTED"\nexec sleep 1000\n')
    compiler.chmod(0o755)
    environment = tree.environment | {"CC": str(compiler), "STARTED": str(started), "TMPDIR": str(temporary)}
    with Started(
        [sys.executable, ".ci/serve", sys.executable, "-c", "import sys; sys.stdin.read()"],
        cwd=tree.root,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stderr is not None
        with started.open() as fifo:
            assert fifo.readline() == "\n"
        server.send_signal(number)
        server.wait()
        server.stderr.read()  # ends when the last process is gone that has it
    assert list(temporary.iterdir()) == []

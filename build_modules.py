"""Compiles the hot modules: every ``x.py`` that has an ``x.pxd`` beside it, each content once.

What was compiled is kept in ``~/.cache/quintlog`` (or ``$XDG_CACHE_HOME/quintlog``) for all checkouts and environments.
A module's key is a hash of all that decides its machine code. It is its library's ELF build ID as well, so that a
library itself says what it was made from. A library gets its name when it is whole: nobody loads half of one.

What Cython needs for typed memoryviews is 30,000 lines of C: they are compiled once, as ``engine._cyutility``, instead
of in each module.

::

    python build_modules.py [require]     into this checkout; `require`: a missing or failing compiler is an error
    python build_modules.py background PARENT
                                          only into the cache, with low priority, until who started it ends
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import multiprocessing
import multiprocessing.pool
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
PACKAGES = ("engine", "netserver", "tools")
UTILITY = "engine._cyutility"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
PROCESSORS = os.cpu_count() or 1
UNUSED_S = 30 * 86_400
"""Libraries that nobody took for so long leave the cache."""
PR_SET_PDEATHSIG = 1
TOLD_S = 5.0
"""Where progress cannot move in place, a line is printed this often."""


class CompileError(Exception):
    """Cython or the C compiler refused; what they said."""


@dataclass(frozen=True)
class Module:
    """A module to be compiled; the key says from what and how."""

    name: str
    views: bool
    checked: bool
    key: str

    @property
    def source(self) -> str:
        """Path within the checkout; the utility module has none, Cython writes it."""
        return self.name.replace(".", "/") + (".c" if self.name == UTILITY else ".py")

    @property
    def file(self) -> Path:
        """Path within the checkout, or within what is built from it."""
        return Path(self.name.replace(".", "/") + SUFFIX)


# --- what there is to compile, and from what


def directives(checked: bool) -> dict[str, bool]:
    """What Cython is told about all modules."""
    return {
        "boundscheck": checked,
        "initializedcheck": checked,
        "overflowcheck": False,
        "wraparound": False,
        "cdivision": True,
    }


def modules(checked: bool = False) -> list[Module]:
    """All of them, the largest first: the last one to be done is then a small one."""
    pxds = [pxd for package in PACKAGES for pxd in (ROOT / package).rglob("*.pxd") if pxd.with_suffix(".py").exists()]
    common = " ".join(
        [version("Cython"), sys.version, SUFFIX, *flags(checked), str(sorted(directives(checked).items()))]
    )
    found = list[Module]()
    for pxd in sorted(pxds, key=lambda path: (-path.with_suffix(".py").stat().st_size, path)):
        name = ".".join(pxd.relative_to(ROOT).with_suffix("").parts)
        read = [pxd.with_suffix(".py"), *sorted(_declarations(pxd))]
        found.append(Module(name, "[:" in pxd.read_text(), checked, _key(f"{common} {name}", read)))
    utility = Module(UTILITY, True, checked, _key(common, ()))
    return [utility, *found] if any(module.views for module in found) else found


def _declarations(pxd: Path) -> set[Path]:
    """A .pxd and all that it takes declarations from, directly or not."""
    seen, waiting = set[Path](), [pxd]
    while waiting:
        path = waiting.pop()
        if path not in seen and path.exists():  # those of C and Cython come with Cython
            seen.add(path)
            for name in re.findall(r"^\s*(?:from\s+(?=\S+\s+cimport)|cimport\s+)(\S+)", path.read_text(), re.MULTILINE):
                waiting.append(ROOT / (name.replace(".", "/") + ".pxd"))
    return seen


def _key(common: str, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256(common.encode())
    for path in paths:
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:40]


# --- compiling


@cache
def flags(checked: bool) -> tuple[str, ...]:
    """What the C compiler is told."""
    usual = shlex.split(f"{sysconfig.get_config_var('CFLAGS') or ''} {os.environ.get('CFLAGS', '')}")
    return (*usual, "-O1" if checked else "-O3", "-g0", "-fPIC", "-shared")  # tests are short: compiling counts


def compiler() -> list[str]:
    """The C compiler's command; empty where there is none, or not Python's headers."""
    words = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    probe = [*words, f"-I{sysconfig.get_path('include')}", "-E", "-"]
    try:
        subprocess.run(probe, input=b"#include <Python.h>", capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return words


def _compile(folder: str, cc: list[str], module: Module) -> None:
    """One module into the cache; in a process of its own."""
    from Cython.Build import cythonize
    from Cython.Compiler.Errors import CompileError as CythonError
    from setuptools import Extension

    options: dict[str, Any] = {"language_level": 3, "compiler_directives": directives(module.checked)}
    options |= {"build_dir": folder, "force": True, "quiet": True}
    if module.views:
        options["shared_utility_qualified_name"] = UTILITY
    try:
        cythonize([Extension(module.name, [module.source])], **options)  # type: ignore[no-untyped-call]
    except CythonError as error:  # it has said why
        raise CompileError(f"{module.name}: Cython refused {error}") from None
    built = Path(folder, module.source).with_suffix(".so")
    words = [*cc, *flags(module.checked), f"-I{sysconfig.get_path('include')}", f"-Wl,--build-id=0x{module.key}"]
    words += [str(built.with_suffix(".c")), "-o", str(built), *shlex.split(os.environ.get("LDFLAGS", ""))]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise CompileError(f"{module.name}: {shlex.join(words)}\n{done.stdout}")
    _copy(built, cached(module))


def compile_missing(wanted: list[Module], tell: Callable[[int, int], None] | None = None) -> None:
    """Compiles into the cache what is not there, a module a processor at a time. Raises CompileError."""
    missing = [module for module in wanted if not holds(cached(module), module)]
    if not missing:
        return
    cc = compiler()
    if not cc:
        raise CompileError("no C compiler with Python's headers (gcc, python3-dev)")
    import Cython.Build  # noqa: F401  (before the processes are forked)

    folders = tempfile.TemporaryDirectory(prefix="quintlog-", ignore_cleanup_errors=True)
    with folders as folder, multiprocessing.get_context("fork").Pool(PROCESSORS, _signals_are_for_the_parent) as pool:
        for done, _ in enumerate(pool.imap_unordered(partial(_compile, folder, cc), missing), 1):
            if tell is not None:
                tell(done, len(missing))
    _forget_unused()


def _signals_are_for_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# --- the cache


@cache
def cache_folder() -> Path:
    """The folder in the user's cache; within the checkout where there is no home, or none that can be written to."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    for folder in (home / "quintlog", ROOT / "build" / "modules"):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise CompileError(f"neither {home} nor {ROOT / 'build'} can be written to")


def cached(module: Module) -> Path:
    """Where the cache has the module, or will have it."""
    return cache_folder() / f"{module.key}.so"


def holds(library: Path, module: Module) -> bool:
    """Whether the file is the module as it is now: its build ID, close to the begin of the file, is the key."""
    try:
        with library.open("rb") as file:
            return bytes.fromhex(module.key) in file.read(65_536)
    except OSError:
        return False


def take(wanted: list[Module], root: Path = ROOT) -> bool:
    """Puts what the cache has into a tree, all or nothing; whether all is in place now."""
    lacking = [module for module in wanted if not holds(root / module.file, module)]
    if not all(holds(cached(module), module) for module in lacking):
        return False
    for module in lacking:
        _copy(cached(module), root / module.file)
        os.utime(cached(module))
    return True


def _copy(source: Path, target: Path) -> None:
    """A file gets its name when it is whole; who has loaded the one before keeps that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            file.write(source.read_bytes())
            os.fchmod(file.fileno(), 0o755)
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _forget_unused() -> None:
    for path in (*cache_folder().glob("*.so"), *cache_folder().glob(".*.so.*")):
        with contextlib.suppress(FileNotFoundError):  # another checkout may do the same
            if path.stat().st_mtime < time.time() - UNUSED_S:
                path.unlink()


# --- the command


def say(text: str, end: str = "\n") -> None:
    """A line of the set-up, as `.ci/venv` writes them."""
    print(f"setup: {text}", end=end, file=sys.stderr, flush=True)  # noqa: T201


class _Progress:
    """One line that changes, or on what is no terminal a line now and then."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def __call__(self, done: int, count: int) -> None:
        now = time.monotonic()
        text = f"{done} of {count} hot modules compiled after {now - self._began:.0f} s"
        if sys.stderr.isatty():
            say(text, "\n" if done == count else "\r")
        elif done == count or now - self._told >= TOLD_S:
            self._told = now
            say(text)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process at a time compiles a checkout: the next one finds in the cache what the first one made."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    with (folder / "modules.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process compiles this checkout: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def into_the_checkout(checked: bool, required: bool) -> None:
    """Compiles what is not compiled, and puts it beside the sources."""
    with _alone():
        wanted = modules(checked)
        if take(wanted):
            return
        try:
            compile_missing(wanted, _Progress())
            take(wanted)
        except CompileError as error:
            if required:
                sys.exit(f"setup: {error}")
            say(f"{error}\nsetup: the hot modules run as plain Python, slower")


def in_the_background(parent: int) -> None:
    """Compiles into the cache for the next start, for as long as the process lives that started this one."""
    signal.signal(signal.SIGTERM, _end_the_group)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    os.nice(19)
    began = time.monotonic()
    try:
        with _alone():
            compile_missing(modules())
    except CompileError as error:
        sys.exit(f"setup: {error}")
    say(f"the hot modules are compiled ({time.monotonic() - began:.0f} s): the next start takes them")


def _end_the_group(*_: object) -> NoReturn:
    """Ends the compilers as well."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    sys.exit(1)


def main() -> None:
    """The command of this file."""
    if sys.argv[1:2] == ["background"]:
        in_the_background(int(sys.argv[2]))
        return
    try:
        into_the_checkout(os.environ.get("QUINTLOG_BUILD") == "checked", sys.argv[1:] == ["require"])
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

"""Quintlog by its public name: the Python clients, and the two commands.

::

    import quintlog

    with quintlog.connect("figg", "127.0.0.1:8119") as client:      # without asyncio
        client.publish("orders", b"one")

    async with quintlog.tank.connect("127.0.0.1:11011") as client:  # with asyncio: figg, tank, blipmq, fujin, reliably
        await client.publish("orders", b"one")

``quintlog.scan("data", "orders")`` reads a data directory or an archive as Arrow record batches, without a server.
``python -m quintlog engine-server ...`` and ``python -m quintlog logtool ...`` are the commands of these names.

The code is in the packages ``engine``, ``netserver`` and ``tools``. A project may have packages of the same names. The
commands take ours, whatever the working directory or PYTHONPATH holds; the clients refuse, and name the other package.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from netserver import blipmq, errors, figg, fujin, reliably, tank, testing
    from netserver.client.blocking import connect
    from tools.spark.source.scan import scan

__all__ = ["blipmq", "connect", "errors", "figg", "fujin", "reliably", "scan", "tank", "testing"]

ROOT = Path(__file__).resolve().parent
PACKAGES = ("engine", "netserver", "tools")
EXIT_UNUSABLE = 3  # as both commands use it


class _OurPackages:
    """Finds our packages before anything on the path, for a process that is ours. Nothing else is found here: to put
    `ROOT` on the path would let what is installed beside us hide modules of the standard library."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in PACKAGES else None


def engine_server() -> None:
    """Entry point of ``engine-server``."""
    _run("tools.engine_server", "engine-server", lambda signals: signals.KEPT.keep())


def logtool() -> None:
    """Entry point of ``logtool``."""
    _run("tools.logtool", "logtool", lambda signals: signals.leave_at_once())


def _upkeep() -> None:
    """Work for a running server, which starts this itself."""
    _run("tools.upkeep", "upkeep", lambda signals: signals.leave_at_once())


def _run(module: str, command: str, prepare: Callable[[ModuleType], None]) -> None:
    sys.meta_path.insert(0, _OurPackages)
    try:
        signals = import_module("tools.early_signals")
        atexit.register(signals.ignore)  # the first is called last
        prepare(signals)  # before the modules that take their time
        gc.disable()  # what is loaded stays: to look for circles in it is a tenth of a start
        main = import_module(module).main
        gc.enable()
        main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in PACKAGES:
            raise  # a defect of ours
        sys.exit(f"{command}: {error.name} is not installed: pip install 'quintlog[server]'")


def check_packages() -> None:
    """Raises ImportError: another package has the name of one of ours."""
    for name in PACKAGES:
        module = sys.modules.get(name)
        spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
        where = None if spec is None else spec.origin
        if where is None or Path(where).resolve() != ROOT / name / "__init__.py":
            raise ImportError(
                f"`import {name}` finds {where or 'nothing'}, not Quintlog's {ROOT / name}: clients and Spark's "
                f"format cannot be used where another package of this name comes first on the path"
            )


def __getattr__(name: str) -> Any:
    """What is public is imported when it is used: each client needs other packages."""
    if name not in (*__all__, "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_packages()
    if name == "connect":
        return import_module("netserver.client.blocking").connect
    if name == "scan":
        try:
            return import_module("tools.spark.source.scan").scan
        except ModuleNotFoundError as error:
            text = f"quintlog.scan needs {error.name}: pip install 'quintlog[arrow]'"
            raise ImportError(text, name=error.name) from error
    if name == "__version__":
        return import_module("netserver.version").product_version()
    return import_module(f"netserver.{name}")


def _main() -> NoReturn:
    commands = {"engine-server": engine_server, "logtool": logtool, "upkeep": _upkeep}
    command = commands.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if command is None:
        sys.exit("usage: python -m quintlog engine-server|logtool ARGUMENTS")
    del sys.argv[0]
    command()
    sys.exit()


if __name__ == "__main__":
    _main()

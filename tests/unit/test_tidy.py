"""House rules that no other tool checks, over every source file: sizes, names, documentation, direction of imports.

Each rule is a function from one parsed file to a list of complaints; ``BAD`` shows for each that it can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.source_files import (
    PACKAGES,
    ROOT,
    Source,
    functions,
    imported,
    parse,
    sources,
    text_files,
    walked,
)

LINE_LENGTH = 120
FUNCTION_LINES = 70
FILE_LINES = 600
TEST_FILE_LINES = 800  # cases side by side read well
# Methods whose meaning asyncio's documentation gives.
ASYNCIO_CALLBACKS = {
    "connection_made",
    "connection_lost",
    "data_received",
    "eof_received",
    "get_buffer",
    "buffer_updated",
    "pause_writing",
    "resume_writing",
    "datagram_received",
    "error_received",
}
# Instructions to tools, which ruff does not count either.
PRAGMA = re.compile(r"  # (?:noqa|type:|fmt:|pragma:).*")
LAYERS = {"engine": 0, "netserver": 1, "tools": 2}
# The engine's packages from the bottom up, and the modules beside them that all of these may use, or that use them all.
ENGINE_ORDER = (
    "files",
    "formats",
    "state",
    "segments",
    "commit",
    "partitions",
    "cursors",
    "sessions",
    "remote",
    "shipping",
)
ENGINE_TOOLS = {
    "callbacks",
    "config",
    "directory_layout",
    "errors",
    "helpers",
    "histogram",
    "limits",
    "reports",
    "slices",
}
# What the parts of a log share (`engine.context`) is made of the packages below these.
CONTEXT_FROM = "commit"
# What commands and Spark import of netserver: clients, what runs a server, what a server and its tools agree on.
NETSERVER_PUBLIC = frozenset(
    f"netserver.{name}"
    for name in (
        "figg", "tank", "blipmq", "fujin", "errors", "client.base", "client.partitioning",
        "client.recognition", "client.tls", "access.key_file", "access.rights", "kafka.committed", "kafka.describe",
        "admin.metrics", "admin.names", "http.json_lines", "http.query", "reliably.applications", "reliably.describe",
        "app", "config.loading", "config.sections", "config.settings",
        "config.table", "contract", "logs", "malloc", "notify", "shell.collection", "shell.inherited",
        "shell.watched_loop", "testing", "version",
    )
)  # fmt: skip
# What commands, Spark and clients import of the engine besides its face (`engine.__all__`): what docs/format.md
# describes, and whoever reads it without a server. How a log runs (commit, partitions, segments in use, the threads of
# the state) is none of it.
ENGINE_PUBLIC = frozenset(
    f"engine.{name}"
    for name in (
        # values: what an operator writes and reads
        "config", "errors", "limits", "positions", "partitions.extent",
        # bytes on disk
        "directory_layout", "formats.batch", "formats.batch_header", "formats.batch_pure", "formats.bundle",
        "formats.bundle_encode", "formats.record", "formats.segment", "segments.damage",
        "segments.missing_numbers", "segments.watermarks",
        # files and whole directories
        "files.lock", "files.owners", "files.system", "reader", "repair",
        # a log in object storage, to be looked at and brought back
        "remote.bucket", "remote.names", "remote.objects", "remote.pinning", "remote.restoring", "remote.snapshot",
        "remote.store", "remote.verifying",
        # entries of the state
        "state.markers", "state.store", "state.topic_entries", "state.writer_ledger",
        "cursors.documents", "cursors.groups", "cursors.lags", "cursors.stored_cursors",
        "sessions.store", "sessions.types",
    )
)  # fmt: skip
# What lies in object storage, as bytes; the other modules of that package ask for them.
REMOTE_CODECS = frozenset(
    f"engine.remote.{name}"
    for name in ("limits", "documents", "names", "catalog", "head", "piece", "state_copy", "cutting")
)
# Modules of netserver that run in a client, where there is no log.
CLIENT = re.compile(r"netserver\.(client\.\w+|\w+\.(client\w*|publisher))")
# Readers without the server (Spark executors) import these; they must not need the index, the state or the network.
LEAN = ("engine.formats.bundle", "engine.formats.batch", "engine.formats.segment")
CHANGES = (
    "open write pwrite pwritev fsync fdatasync ftruncate truncate rename replace unlink remove mkdir makedirs rmdir"
)
FILE_CALLS = {f"os.{name}" for name in CHANGES.split()} | {"open"}

WALL_TIME = frozenset(
    [
        "engine/state/clock.py",
        "engine/partitions/housekeeping.py",
        "engine/segments/recovery.py",
        "netserver/access/audit.py",
        "netserver/access/key_file.py",
        "netserver/admin/metrics.py",
        "netserver/admin/staged_commits.py",
        "netserver/app.py",
        "netserver/client/tls.py",
        "netserver/logs.py",
        "netserver/shell/connection.py",
        "netserver/shell/tls.py",
        "netserver/tank/listener_state.py",
        "netserver/tank/publisher.py",
        "tools/engine_server.py",
        "tools/logtool/lib/authority.py",
        "tools/logtool/lib/backup_copy.py",
        "tools/logtool/lib/stored_subscriptions.py",
        "tools/logtool/debug.py",
        "tools/logtool/repair.py",
        "engine/positions.py",
    ]
)
"""Files that read the system's clock or times of files; docs/clocks.md says for each what for."""
WALL_NAMES = {
    "wall_ms",
    *(f"time.{name}" for name in ["time", "time_ns", "gmtime", "localtime", "strftime", "ctime", "asctime"]),
}
WALL_ENDS = (".now", ".utcnow", ".today", ".fromtimestamp")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),  # the first rule reads all files
    pytest.mark.skipif(not (ROOT / "engine").is_dir(), reason="looks at a checkout, not at an installation"),
]


def long_lines(source: Source) -> list[str]:
    return [
        f"{source.path}:{number}: {len(line)} characters"
        for number, line in enumerate(source.text.splitlines(), 1)
        if len(PRAGMA.sub("", line)) > LINE_LENGTH
    ]


def long_files(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    limit = TEST_FILE_LINES if source.package == "tests" else FILE_LINES
    return [f"{source.path}: {lines} lines"] if lines > limit else []


def long_functions(source: Source) -> list[str]:
    """Functions above the limit; a docstring (often a byte table) does not count."""
    found = []
    for node in functions(source):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines -= (first.end_lineno or first.lineno) - first.lineno + 1
        if lines > FUNCTION_LINES:
            found.append(source.at(node, f"{node.name} has {lines} lines"))
    return found


def bare_excepts(source: Source) -> list[str]:
    return [
        source.at(node, "except without a class")
        for node in walked(source.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def prints(source: Source) -> list[str]:
    if source.package not in ("engine", "netserver"):
        return []
    return [
        source.at(node, "print")
        for node in walked(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


@cache
def documented_methods() -> dict[str, frozenset[str]]:
    """Class name -> its documented methods, over all our classes; "" -> those of every typing.Protocol."""
    found: dict[str, set[str]] = {"": set()}
    for source in sources():
        for node in walked(source.tree):
            if isinstance(node, ast.ClassDef) and source.package in PACKAGES:
                kinds = ast.FunctionDef | ast.AsyncFunctionDef
                names = {item.name for item in node.body if isinstance(item, kinds) and ast.get_docstring(item)}
                found.setdefault(node.name, set()).update(names)
                if any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases):
                    found[""] |= names
    return {name: frozenset(names) for name, names in found.items()}


def told_elsewhere(owner: ast.ClassDef, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether asyncio, a protocol or a base class of ours says what a method does."""
    documented = documented_methods()
    bases = {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in owner.bases} | {""}
    return node.name in ASYNCIO_CALLBACKS or any(node.name in documented.get(base, ()) for base in bases)


def undocumented(source: Source) -> list[str]:
    """Public modules, classes, functions and methods without a docstring.

    The twin ``x_pure.py`` of a compiled module repeats its names and is documented there.
    """
    if source.package not in PACKAGES or source.path.endswith("_pure.py"):
        return []
    found = []
    if source.text.strip() and ast.get_docstring(source.tree) is None:
        found.append(f"{source.path}:1: module")
    stack: list[ast.Module | ast.ClassDef] = [source.tree]
    while stack:
        scope = stack.pop()
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            inherited = isinstance(scope, ast.ClassDef) and told_elsewhere(scope, node)
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            twin = any(name.endswith((".setter", "overload", "override")) for name in decorators)
            if ast.get_docstring(node) is None and not inherited and not twin:
                found.append(source.at(node, node.name))
            if isinstance(node, ast.ClassDef):
                stack.append(node)
    return found


def stray_limits(source: Source) -> list[str]:
    if source.package not in PACKAGES or source.path.endswith("/limits.py"):
        return []
    found = []
    for node in source.tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            # A leading underscore: a compiled module's own copy of a limit.
            if isinstance(target, ast.Name) and re.search(r"^(?!_|NO_).*(MAX|LIMIT)$", target.id):
                found.append(source.at(node, f"{target.id} belongs in limits.py"))
    return found


def upward_imports(source: Source) -> list[str]:
    layer = LAYERS.get(source.package)
    if layer is None:
        return []
    return [
        source.at(node, f"imports {name}")
        for node, name in imported(source)
        if LAYERS.get(name.split(".", 1)[0], -1) > layer or name.split(".", 1)[0] in ("tests", "bench")
    ]


@cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources())


def beside_public(source: Source) -> list[str]:
    """Commands, Spark and clients import what engine and netserver offer; the rest may change without them."""
    if source.package != "tools" and not CLIENT.fullmatch(source.module):
        return []
    public = ENGINE_PUBLIC | (NETSERVER_PUBLIC if source.package == "tools" else frozenset())
    below = ("engine.", "netserver.") if source.package == "tools" else ("engine.",)
    found = ((node, name if name in modules() else name.rpartition(".")[0]) for node, name in imported(source))
    return [
        source.at(node, f"imports {module}")
        for node, module in found
        if module.startswith(below) and module not in public
    ]


def written_partitions(source: Source) -> list[str]:
    """A partition's fields are its own: others read what is public of it, and change it by its methods."""
    if source.package not in PACKAGES or source.path == "engine/partitions/partition.py":
        return []
    found = []
    for node in walked(source.tree):
        if isinstance(node, ast.Attribute) and re.search(r"(?:^|[._])partition$", ast.unparse(node.value)):
            if isinstance(node.ctx, ast.Store | ast.Del):
                found.append(source.at(node, f"writes {ast.unparse(node)}"))
            elif node.attr.startswith("_"):
                found.append(source.at(node, f"reaches {ast.unparse(node)}"))
    return found


def engine_order(source: Source) -> list[str]:
    """A package of the engine imports those below it, and nothing of those above it, for types neither."""
    match = re.match(r"engine\.(\w+)", source.module)
    package = CONTEXT_FROM if match is not None and match[1] == "context" else match[1] if match is not None else ""
    if package not in ENGINE_ORDER:
        return []
    allowed = {*ENGINE_ORDER[: ENGINE_ORDER.index(package) + 1], *ENGINE_TOOLS}
    if ENGINE_ORDER.index(package) >= ENGINE_ORDER.index(CONTEXT_FROM):
        allowed.add("context")
    return [
        source.at(node, f"imports {name}")
        for node, name in imported(source)
        if name.startswith("engine.") and name.split(".")[1] not in allowed
    ]


def codec_imports(source: Source) -> list[str]:
    """A codec does no I/O: of ours it imports only its own errors and limits, and record packing."""
    match = re.fullmatch(r"(netserver\.\w+\.)(codec|frames)\w*|(engine\.remote\.)\w+", source.module)
    if match is None or (match[3] and source.module not in REMOTE_CODECS):
        return []
    own = (match[1],) if match[1] else ("engine.errors", *REMOTE_CODECS)
    allowed = (
        "engine.formats.batch", "engine.formats.bundle", "engine.formats.record", "engine.limits", "cython", *own
    )  # fmt: skip
    banned = {"asyncio", "socket", "uvloop", "os", "pathlib", "aioquic", "aiohttp", "lmdb"}
    return [
        source.at(node, f"imports {name}")
        for node, name in imported(source)
        if name.split(".", 1)[0] in banned or (name.startswith(PACKAGES) and not name.startswith(allowed))
    ]


def stray_file_calls(source: Source) -> list[str]:
    """Only engine/files/system.py changes or opens files, so that tests can make any of these calls fail.

    LMDB opens its own files, and the module that makes its environments syncs their directory, which LMDB does not.
    LOCK is no file of data: the module that holds its descriptor for life does so by itself.
    """
    if source.package != "engine" or source.path in (
        "engine/files/system.py",
        "engine/state/environment.py",
        "engine/files/lock.py",
    ):
        return []
    found = []
    for node in walked(source.tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in FILE_CALLS or name.endswith((".write_bytes", ".write_text", ".unlink")):
                found.append(source.at(node, f"{name}()"))
    return found


def stray_wall_time(source: Source) -> list[str]:
    """What is kept for a time goes by the clock of the log, timers by the steady one: few places read the system's."""
    if source.package not in PACKAGES or source.path in WALL_TIME:
        return []
    return [source.at(node, f"reads the system's clock ({text})") for node, text in wall_time(source)]


def wall_time(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every place of a file that reads the system's clock, or the time of a file."""
    for node in walked(source.tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_given = bool(node.args) and name.rpartition(".")[2] in ("gmtime", "localtime", "fromtimestamp", "ctime")
            if not is_given and (name in WALL_NAMES or ("date" in name and name.endswith(WALL_ENDS))):
                yield node, f"{name}()"
        elif isinstance(node, ast.Attribute) and node.attr in ("st_mtime", "st_mtime_ns", "CLOCK_REALTIME"):
            yield node, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ((node, alias.name) for alias in node.names if f"time.{alias.name}" in WALL_NAMES)


RULES: tuple[Callable[[Source], list[str]], ...] = (
    long_lines,
    long_files,
    long_functions,
    bare_excepts,
    prints,
    undocumented,
    stray_limits,
    upward_imports,
    beside_public,
    written_partitions,
    engine_order,
    codec_imports,
    stray_file_calls,
    stray_wall_time,
)


def test_what_the_engine_offers_is_used() -> None:
    """Each module on the list is there for somebody, so that the list stays short."""
    used = {
        name if name in modules() else name.rpartition(".")[0]
        for source in sources()
        if source.package != "engine" and source.package in PACKAGES
        for _, name in imported(source)
    }
    assert ENGINE_PUBLIC - used == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Source], list[str]]) -> None:
    complaints = [complaint for source in sources() for complaint in rule(source)]
    assert not complaints, "\n" + "\n".join(complaints)


BAD: dict[str, tuple[str, str]] = {
    "long_lines": ("engine/x.py", '"""D."""\n# ' + "x" * 120 + "\n"),
    "long_files": ("engine/x.py", '"""D."""\n' + "pass\n" * 600),
    "long_functions": ("tests/x.py", "def f():\n" + "    pass\n" * 70),
    "bare_excepts": ("tests/x.py", "try:\n    pass\nexcept:\n    pass\n"),
    "prints": ("netserver/x.py", '"""D."""\nprint(1)\n'),
    "undocumented": ("tools/x.py", '"""D."""\n\nclass A:\n    """D."""\n\n    def method(self): ...\n'),
    "stray_limits": ("engine/x.py", '"""D."""\nRECORD_BYTES_MAX = 5\n'),
    "upward_imports": ("engine/x.py", '"""D."""\nfrom netserver import figg\n'),
    "beside_public": (
        "tools/x.py",
        '"""D."""\nfrom engine.commit.round_steps import Round\n',
    ),
    "written_partitions": ("netserver/x.py", '"""D."""\n\ndef _f(partition):\n    partition.last_seq += 1\n'),
    "engine_order": ("engine/state/x.py", '"""D."""\nfrom engine.segments import damage\n'),
    "codec_imports": ("netserver/figg/codec.py", '"""D."""\nfrom netserver.shell.connection import Connection\n'),
    "stray_wall_time": ("engine/x.py", '"""D."""\nimport time\nprint(time.gmtime(5), time.monotonic(), time.time())\n'),
    "stray_file_calls": ("engine/x.py", '"""D."""\nimport os\nos.rename("a", "b")\n'),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_can_fail(rule: Callable[[Source], list[str]]) -> None:
    assert len(rule(parse(*BAD[rule.__name__]))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "time.time_ns()", "datetime.now(UTC)", "datetime.datetime.utcnow()", "date.today()", "wall_ms()",
        "time.gmtime()",
        "from time import time", "os.stat('x').st_mtime", "time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)  # fmt: skip
def test_every_way_to_read_the_systems_clock_is_found(text: str) -> None:
    assert len(list(wall_time(parse("engine/x.py", text)))) == 1


def test_the_page_on_clocks_has_every_place_that_reads_the_systems() -> None:
    page = (ROOT / "docs" / "clocks.md").read_text()
    assert sorted(re.findall(r"^\| ((?:engine|netserver|tools)/\S+\.py) \|", page, re.M)) == sorted(WALL_TIME)
    assert {source.path for source in sources() if source.path in WALL_TIME and not list(wall_time(source))} == set()
    assert {source.path for source in sources()} >= WALL_TIME


def reachable(start: str) -> set[str]:
    """Every module that importing ``start`` loads, as far as the checkout's own files tell."""
    modules = {source.module: source for source in sources()}
    seen: set[str] = set()
    stack = [start]
    while stack:
        name = stack.pop()
        while name not in modules and "." in name and name.split(".", 1)[0] in PACKAGES:
            name = name.rsplit(".", 1)[0]
        if name not in seen:
            seen.add(name)
            if name in modules:
                stack.extend(found for _, found in imported(modules[name]))
    return seen


@pytest.mark.parametrize("module", LEAN)
def test_readers_without_server_stay_lean(module: str) -> None:
    heavy = {
        name
        for name in reachable(module)
        if name.split(".", 1)[0] in {"lmdb", "netserver", "tools", "uvloop", "asyncio"}
    }
    assert heavy == set()


def test_every_pxd_has_its_module() -> None:
    assert [
        str(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.pxd")
        if not path.with_suffix(".py").exists()
    ] == []


NOTES = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
# Folders of one person's machine: what is written down has to hold on any.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|home|Users|work|mnt)/\w")


def test_texts_have_no_notes_to_self_and_no_machine_paths() -> None:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if NOTES.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n" + "\n".join(found)

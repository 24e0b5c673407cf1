"""Manual pages, made from `--help` and `--print-config`: one for each command, for the server and for its settings.

They are written in the `man` macros of roff, which man-db and mandoc both read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from netserver.config.sections import ServerConfig
from netserver.config.table import SECTIONS
from netserver.version import product_version
from tools.logtool.cli import COMMANDS, root
from tools.logtool.lib.examples import examples_text

MANUAL: Final = "Quintlog Manual"
SERVER, SETTINGS = "engine-server", "quintlog.toml"
_ENVIRONMENT = re.compile(r"^(.*?)[;.]? ?\[((?:QUINTLOG|NO)_\w+)\](.*)$", re.DOTALL)
_EXIT_CODE = re.compile(r"(\d+) ([^,]+)")
_UNWRAPPED = "\b\n"
"""Click's mark of a paragraph whose lines stay as they are."""


def plain(text: str) -> str:
    """Text as roff has to be told it: backslashes, hyphens that are to be copied, no line that is taken for a macro."""
    told = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in told.splitlines())


def bold(text: str) -> str:
    """As `plain`, in bold."""
    return f"\\fB{plain(text)}\\fR"


def _page(lines: list[str]) -> str:
    """The page's text; a paragraph begins by itself after a heading."""
    return re.sub(r"(?m)^(\.SH .*)\n\.PP\n", r"\1\n", "\n".join([*lines, ""]))


def _title(name: str, section: int) -> str:
    return f'.TH "{name.upper()}" "{section}" "" "Quintlog {product_version()}" "{MANUAL}"'


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text, each with the macros before and after it."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith(_UNWRAPPED):
            lines = paragraph.removeprefix(_UNWRAPPED).splitlines()
            yield "\n".join([".PP", ".nf", *map(plain, lines), ".fi"])
        else:
            yield f".PP\n{plain(' '.join(paragraph.split()))}"


def _entry(term: str, text: str) -> str:
    return f".TP\n{bold(term)}\n{plain(' '.join(text.split()))}"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """The options of a command; those that all share are on the page of `logtool` alone."""
    shared = set() if command is root else {param.opts[0] for param in root.params}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if (
            isinstance(param, click.Option)
            and record is not None
            and (param.opts[0] not in shared or param.name == "help")
        ):
            yield _entry(*record)


def _usage(command: click.Command, path: str, context: click.Context) -> str:
    return f".PP\n{bold(path)} {plain(' '.join(command.collect_usage_pieces(context)))}"


def _examples(path: str) -> list[str]:
    lines = examples_text(path).splitlines()
    return [".SH EXAMPLES", ".nf", *map(plain, lines), ".fi"] if lines else []


def _epilog(text: str) -> Iterator[str]:
    """The examples and exit codes that the two programs' help ends with."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = paragraph.removeprefix(_UNWRAPPED).splitlines()
        if lines[0] == "Examples:":
            yield "\n".join([".SH EXAMPLES", ".nf", *(plain(line.strip()) for line in lines[1:]), ".fi"])
        else:
            codes = _EXIT_CODE.findall(" ".join(lines).rstrip("."))
            yield "\n".join([".SH EXIT STATUS", *(_entry(code, meaning) for code, meaning in codes)])


def _environment() -> Iterator[str]:
    """The variables that stand for global options, as the options' help names them."""
    with click.Context(root, info_name="logtool", **root.context_settings) as context:
        for param in root.params:
            record = param.get_help_record(context)
            found = _ENVIRONMENT.match(record[1]) if record is not None else None
            if found is not None:
                yield _entry(found[2], f"{found[1]} (as {param.opts[-1]}).")


def _also(*names: str) -> list[str]:
    return [".SH SEE ALSO", ", ".join(f"\\fB{plain(name)}\\fR({section})" for name, section in map(_split, names))]


def _split(name: str) -> tuple[str, str]:
    base, _, section = name.rpartition(".")
    return base, section


def _command(name: str, command: click.Command, context: click.Context) -> str:
    """The page of one command, with those below it."""
    path, summary = f"logtool {name}", COMMANDS[name][2].rstrip(".")
    with click.Context(command, info_name=name, parent=context) as own:
        lines = [_title(f"logtool-{name}", 1), ".SH NAME", f"{plain(f'logtool-{name}')} \\- {plain(summary)}"]
        lines += [".SH SYNOPSIS", _usage(command, path, own), ".SH DESCRIPTION", *_paragraphs(command.help or "")]
        if isinstance(command, click.Group):
            for inner_name, inner in sorted(command.commands.items()):
                with click.Context(inner, info_name=inner_name, parent=own) as below:
                    lines += [f'.SH "{plain(f"{path} {inner_name}").upper()}"']
                    lines += [_usage(inner, f"{path} {inner_name}", below), *_paragraphs(inner.help or "")]
                    lines += _options(inner, below)
                    lines += [line.replace(".SH EXAMPLES", ".PP") for line in _examples(f"{path} {inner_name}")]
        else:
            lines += [".SH OPTIONS", *_options(command, own), *_examples(path)]
        lines += _also("logtool.1", f"{SERVER}.8")
    return _page(lines)


def _logtool() -> str:
    with click.Context(root, info_name="logtool", **root.context_settings) as context:
        lines = [_title("logtool", 1), ".SH NAME", "logtool \\- look into a log, check it, read it and feed it"]
        lines += [".SH SYNOPSIS", f"{bold('logtool')} [OPTIONS] COMMAND [ARGS]...", ".SH DESCRIPTION"]
        lines += [*_paragraphs(root.help or ""), ".SH COMMANDS"]
        lines += [_entry(name, f"{text} See logtool-{name}(1).") for name, (_, _, text) in COMMANDS.items()]
        lines += [".SH OPTIONS", "They may stand before the command or after it.", *_options(root, context)]
        lines += [".SH ENVIRONMENT", *_environment(), *_epilog(str(root.epilog)), ".SH FILES"]
        lines += [
            _entry("~/.config/quintlog/contexts.json", "What `logtool context` keeps."),
            _entry("DIR/server.json", "Process and addresses of the server that runs on a data directory."),
            _entry("DIR/admin.token", "What opens the admin API; for the server's user alone."),
        ]
        lines += [*_also(*(f"logtool-{name}.1" for name in COMMANDS), f"{SERVER}.8", f"{SETTINGS}.5")]
    return _page(lines)


def _server() -> str:
    from tools.engine_server import main

    with click.Context(main, info_name=SERVER, **main.context_settings) as context:
        lines = [_title(SERVER, 8), ".SH NAME", f"{plain(SERVER)} \\- the log server of Quintlog", ".SH SYNOPSIS"]
        lines += [_usage(main, SERVER, context), ".SH DESCRIPTION", *_paragraphs(main.help or "")]
        lines += [".SH OPTIONS", *_options(main, context), ".SH SIGNALS"]
        lines += [
            _entry("SIGTERM, SIGINT", "Finish what is under way, close the log, end. A second one ends it at once."),
            _entry("SIGHUP", "Read the configuration again, all of it or nothing; the log says which."),
        ]
        lines += [*_epilog(str(main.epilog)), *_also("logtool.1", f"{SETTINGS}.5")]
    return _page(lines)


def _settings() -> str:
    lines = [_title(SETTINGS, 5), ".SH NAME", f"{SETTINGS} \\- settings of the log server", ".SH DESCRIPTION"]
    text = (
        "A TOML file that engine-server(8) is given with --config; any subset of the settings below makes a valid one. "
        "In the environment a setting is QUINTLOG_SECTION_KEY, and with _FILE after it the name of a file that holds "
        "the value. Sizes and durations have units: 128MiB, 7d. What is marked * needs a restart, all else is taken "
        "over by a reload."
    )
    lines.append(plain(text))
    defaults = ServerConfig()
    for section, known in SECTIONS.items():
        lines.append(f'.SH "[{section}]"')
        for entry in known.values():
            mark = "" if entry.is_reloadable else " *"
            lines.append(_entry(f"{entry.name} = {entry.toml(defaults)}{mark}", entry.how.help))
    return _page([*lines, *_also(f"{SERVER}.8", "logtool.1")])


def pages() -> dict[str, str]:
    """Every page by its file's name, such as ``logtool-cat.1``."""
    made = {"logtool.1": _logtool(), f"{SERVER}.8": _server(), f"{SETTINGS}.5": _settings()}
    with click.Context(root, info_name="logtool", **root.context_settings) as context:
        for name in COMMANDS:
            command: Any = root.get_command(context, name)
            made[f"logtool-{name}.1"] = _command(name, command, context)
    return made


def write(directory: Path) -> list[Path]:
    """Writes all pages below `directory`, as `man -M` looks for them; their paths. Raises OSError."""
    written = []
    for name, text in sorted(pages().items()):
        path = directory / f"man{name[-1]}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        written.append(path)
    return written

"""The command line's frame: global options, and commands that are loaded only when they are called."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from tools.logtool.lib.address_options import AddressOptions
from tools.logtool.lib.examples import examples_text
from tools.logtool.lib.output import FORMS, Output

COMPLETION_VARIABLE = "_LOGTOOL_COMPLETE"
"""Set by the scripts of `generate completion` when a shell asks what may come next."""

COMMANDS = {
    "status": ("tools.logtool.status", "status", "The log at a glance: server, topics, sizes, room on the disk."),
    "top": ("tools.logtool.top", "top", "What the server is doing now: rates, times, busiest topics."),
    "check": ("tools.logtool.check", "check", "Is the server well? For monitors: disk, damage, syncs, lag."),
    "topics": ("tools.logtool.topics", "topics", "List, show, make, change, trim and delete topics."),
    "cat": ("tools.logtool.cat", "cat", "Print records up to what is committed now."),
    "tail": ("tools.logtool.cat", "tail", "Print the newest records, then each new one as it is committed."),
    "publish": ("tools.logtool.publish", "publish", "Publish a file, several, or standard input."),
    "bench": ("tools.logtool.bench", "bench", "Measure a server: publishing, reading, times of single records."),
    "connections": ("tools.logtool.connections", "connections", "List and end TCP connections of all protocols."),
    "sessions": (
        "tools.logtool.sessions",
        "sessions",
        "List, show and remove sessions of JSON stream (reliably) clients.",
    ),
    "console": ("tools.logtool.console", "console", "An address of the server's pages, already logged in."),
    "commits": ("tools.logtool.commits", "commits", "List batches of sinks, give up the rest of one."),
    "subscriptions": ("tools.logtool.subscriptions", "subscriptions", "List, show and change durable subscriptions."),
    "groups": ("tools.logtool.groups", "groups", "Durable positions by name, of all protocols and of HTTP consumers."),
    "keys": ("tools.logtool.keys", "keys", "Say who may do what: identities, their keys and rights."),
    "definitions": (
        "tools.logtool.definitions",
        "definitions",
        "Topics and their settings as a file: write it, bring a log to it.",
    ),
    "import": ("tools.logtool.importing", "importing", "Take in the files of other brokers."),
    "certificates": (
        "tools.logtool.certificates",
        "certificates",
        "A private authority: make and show certificates for TLS.",
    ),
    "context": ("tools.logtool.contexts", "context", "Addresses of logs under names: list, add, use, remove."),
    "config": ("tools.logtool.config", "config", "Show and check the server's configuration; reload it."),
    "generate": ("tools.logtool.generate", "generate", "Files for shells, systemd, man, Prometheus, Grafana."),
    "debug": ("tools.logtool.debug", "debug", "For the report of a defect: what it needs, in one file."),
    "dump": ("tools.logtool.dump", "dump", "Show what is in the files: segments, batches, records."),
    "repair": ("tools.logtool.repair", "repair", "Show what a repair would do and give up; --apply does it."),
    "upgrade": ("tools.logtool.upgrade", "upgrade", "Can this version open a directory, and which ones can go back?"),
    "backup": ("tools.logtool.backup", "backup", "Copy the whole log as of now, also while a server writes it."),
    "restore": ("tools.logtool.backup", "restore", "Make a data directory of a backup."),
    "remote": ("tools.logtool.remote", "remote", "A log in object storage: look at it, verify it, restore it."),
    "archive-segments": (
        "tools.logtool.archive_segments",
        "archive_segments",
        "Copy sealed segments to object storage, for Spark.",
    ),
    "archive-table": (
        "tools.logtool.archive_table",
        "archive_table",
        "Add records to a Delta Lake table, for SQL engines.",
    ),
    "spark": ("tools.logtool.spark", "spark", "Run a job on Spark: audit, archive, replay, statistics and more."),
    "verify": ("tools.logtool.verify", "verify", "Check every byte of the log and report all that is damaged."),
}


WITHOUT_ADDRESS = {"certificates", "context", "generate", "remote"}
"""Groups whose commands mean no log: a damaged file of contexts does not stop them."""


@dataclass(slots=True)
class Settings(AddressOptions):
    """The global options; what is not given on the command line comes from the environment."""

    form: str | None = None
    quiet: bool = False
    verbose: bool = False
    timeout_s: float = 10.0
    yes: bool = False
    no_input: bool = False
    no_color: bool = False

    def complete(self) -> None:
        """Fills in the environment's values. Raises click.UsageError when one is not valid."""
        get = self.environment.get
        self.take_address()
        self.form = self.form or get("QUINTLOG_OUTPUT") or "table"
        if self.form not in FORMS:
            raise click.UsageError(f"QUINTLOG_OUTPUT is {self.form!r}; expected {', '.join(FORMS)}")
        self.no_color = self.no_color or bool(get("NO_COLOR"))

    @property
    def output(self) -> Output:
        """Where a command writes."""
        form: Any = self.form or "table"
        return Output(form, self.quiet, self.verbose, not self.no_color)

    def need_directory(self, command: str = "") -> Path:
        """The data directory, for what reads or changes files.

        Args:
            command: the one of `tools.logtool.lib.files_only` that asks.

        Raises:
            click.UsageError: none was named. Failure: the same, of a command that a server cannot do.
        """
        if self.data_dir is None and command:
            from tools.logtool.lib.errors import Failure
            from tools.logtool.lib.files_only import FILES_ONLY

            text, exit_code = FILES_ONLY[command]
            raise Failure(exit_code, "files_only", f"{command} {text}")
        if self.data_dir is None:
            raise click.UsageError("this reads files: name the data directory with --data-dir DIR or QUINTLOG_DATA_DIR")
        return self.data_dir


class DirectoryType(click.Path):
    """A directory; an empty text, of a variable that is not set, is not the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Called by click. Fails with its usage error."""
        if value == "":
            self.fail("an empty name means no log", param, ctx)
        return super().convert(value, param, ctx)


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(ctx.ensure_object(Settings), name, value)

    return callback


def _context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tools.logtool.contexts import complete_name

    return complete_name(ctx, param, incomplete)


def global_options() -> list[click.Parameter]:
    """New option objects; they are taken before the command and after it."""

    def option(*names: str, store: str, **details: Any) -> click.Option:
        return click.Option(names, expose_value=False, default=None, callback=_store(store), **details)

    def flag(*names: str, store: str, text: str) -> click.Option:
        return option(*names, store=store, is_flag=True, flag_value=True, help=text)

    file = click.Path(path_type=Path, dir_okay=False)
    directory = DirectoryType(path_type=Path, file_okay=False, readable=False)
    return [
        option(
            "--data-dir",
            store="data_dir",
            type=directory,
            metavar="DIR",
            help="The log's directory [QUINTLOG_DATA_DIR].",
        ),
        option("--server", store="server", metavar="URL", help="The server's admin address [QUINTLOG_SERVER]."),
        option(
            "--context",
            store="context",
            metavar="NAME",
            help="The address that `context add` kept [QUINTLOG_CONTEXT].",
            shell_complete=_context_names,
        ),
        option(
            "--token-file",
            store="token_file",
            type=file,
            metavar="FILE",
            help="Token for --server [QUINTLOG_TOKEN_FILE]; with --data-dir it is found there.",
        ),
        option(
            "--ca",
            store="ca",
            metavar="FILE",
            help="TLS: authorities of the server's certificate (PEM), `system`, or `off` [QUINTLOG_CA].",
        ),
        option("--cert", store="cert", type=file, metavar="FILE", help="TLS: own certificate [QUINTLOG_CERT]."),
        option("--key", store="key", type=file, metavar="FILE", help="TLS: its private key [QUINTLOG_KEY]."),
        option(
            "--server-name",
            store="server_name",
            metavar="NAME",
            help="TLS: what the server's certificate is for, if not the host [QUINTLOG_SERVER_NAME].",
        ),
        option(
            "--api-key-file",
            store="api_key_file",
            type=file,
            metavar="FILE",
            help="Key for --via blipmq, NAME:KEY for kafka [QUINTLOG_API_KEY_FILE, or itself in QUINTLOG_API_KEY].",
        ),
        option(
            "-o",
            "--output",
            store="form",
            type=click.Choice(FORMS),
            help="Form of the output [QUINTLOG_OUTPUT]; table.",
        ),
        flag("-q", "--quiet", store="quiet", text="No remarks on stderr, only errors."),
        flag("-v", "--verbose", store="verbose", text="More remarks on stderr."),
        option("--timeout", store="timeout_s", type=click.FloatRange(0.001), metavar="S", help="Seconds to wait; 10."),
        flag("--yes", store="yes", text="Answer yes to every question."),
        flag("--no-input", store="no_input", text="Never ask; without --yes a question is an error."),
        flag("--no-color", store="no_color", text="Plain output on terminals too [NO_COLOR]."),
    ]


class Command(click.Command):
    """A command that takes the global options too."""

    def __init__(self, *args: Any, **details: Any) -> None:
        super().__init__(*args, **details)
        self._own = len(self.params)
        own = {name for param in self.params for name in param.opts}  # --key of records: the other stands in front
        self.params.extend(option for option in global_options() if own.isdisjoint(option.opts))

    def invoke(self, ctx: click.Context) -> Any:
        """Called by click once every option was taken."""
        settings = ctx.ensure_object(Settings)
        settings.complete()
        if settings.context or ctx.parent is None or ctx.parent.command.name not in WITHOUT_ADDRESS:
            settings.find_address()
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options; the global ones are in `logtool --help`."""
        options = [param for param in self.params[: self._own] if isinstance(param, click.Option)]
        records = [record for param in options if (record := param.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl([*records, ("-h, --help", "Show this message and exit.")])
        formatter.write_paragraph()
        formatter.write_text("Global options (logtool --help) may stand here too.")
        text = examples_text(ctx.command_path)
        if text:
            with formatter.section("Examples"):
                for line in text.splitlines():
                    formatter.write(f"  {line}\n")


ALIASES = {
    "rm": ("delete", "drop", "remove", "revoke"),
    "ls": ("list",),
    "describe": ("show",),
    "info": ("show",),
    "consume": ("tail",),
    "sub": ("tail",),
}
"""Words of other tools: whichever of these commands the group has."""
DESTRUCTIVE = {"close", "delete", "drop", "redrive", "remove", "repair", "reset", "restore", "revoke", "trim"}
"""Never offered for a word that means nothing: who mistypes would be led to lose something."""


class NearestGroup(click.Group):
    """Takes the words of other tools, and names the nearest command for one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Called by click with the words after the group's own."""
        known = self.list_commands(ctx)
        if args[0] not in known:
            args = [next((name for name in ALIASES.get(args[0], ()) if name in known), args[0]), *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:  # click's own message may suggest any of them
            near = difflib.get_close_matches(args[0], [name for name in known if name not in DESTRUCTIVE], n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx) from None


class Group(NearestGroup):
    """A group whose commands take the global options."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, each with the whole first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(10_000)) for name in sorted(self.commands)]
            )


class LazyGroup(NearestGroup):
    """Imports a command's module when the command is called; the list of commands needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command."""
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names from the table, without importing the commands."""
        found = [
            CompletionItem(name, help=text) for name, (_, _, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `logtool --help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


EPILOG = """\b
Examples:
  logtool publish orders orders.txt                   each line becomes a record
  logtool --data-dir data cat orders --from -10       the last ten
  logtool tail orders --format '%o %t %v\\n'
  logtool status -o json
  export QUINTLOG_DATA_DIR=data                       so that --data-dir is not needed

Exit codes: 0 done, 1 damage or another finding, 2 usage, 3 not reachable or cannot open, 4 refused, 5 not
found, 6 in use or conflict, 7 no space or limit, 8 timeout, 70 a bug, 130 interrupted, 143 terminated."""


def _version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked:
        from netserver.version import product_version

        click.echo(f"logtool {product_version()}")
        ctx.exit()


VERSION = click.Option(
    ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
root = LazyGroup(
    "logtool",
    params=[*global_options(), VERSION],
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Looks into a log, checks it, reads it and feeds it.

    A log has one address: its directory (--data-dir) or its server's admin URL (--server); `context` keeps addresses
    under names. Reading commands work on the directory beside a running server. Commands that change something go
    through the server when one is running. Without an address the server at http://127.0.0.1:9180 is meant.""",
)

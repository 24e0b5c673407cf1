"""Runs a command line and turns what happened into an exit code and a message."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

import click

from tools.early_signals import Ended
from tools.logtool.cli import COMPLETION_VARIABLE, Settings, root
from tools.logtool.lib import errors
from tools.logtool.lib.output import say


def run(args: Sequence[str] | None = None) -> int:
    """Runs `logtool` with these arguments (those of the process when None); the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    settings = Settings()
    if args is None and COMPLETION_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "logtool", COMPLETION_VARIABLE, os.environ[COMPLETION_VARIABLE])
    try:
        with root.make_context("logtool", arguments, obj=settings) as context:
            root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort) as signal:
        _flush_what_is_there()
        return interrupted(signal)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit's flush fails quietly
        return errors.CLOSED_PIPE
    except errors.Finding:
        return errors.FINDING
    except click.ClickException as error:
        _usage(error, _wants_json(settings, arguments))
        return errors.USAGE
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets a message and an exit code
        return _failed(error, settings, _wants_json(settings, arguments))
    return errors.DONE


def interrupted(signal: BaseException) -> int:
    """The exit code when a signal, or the answer to a question, has ended the command."""
    return 128 + signal.number if isinstance(signal, Ended) else errors.INTERRUPTED


def _wants_json(settings: Settings, arguments: Sequence[str]) -> bool:
    """Whether errors are told as JSON, also when the command line failed before its `-o json` was come to."""
    form = settings.form
    for at, word in enumerate(arguments):
        if form is not None or word == "--":
            break
        if word in ("-o", "--output"):
            form = next(iter(arguments[at + 1 : at + 2]), None)
        elif word.startswith("--output="):
            form = word.removeprefix("--output=")
        elif word.startswith("-o"):
            form = word.removeprefix("-o").removeprefix("=")
    return (form or settings.environment.get("QUINTLOG_OUTPUT")) == "json"


def _flush_what_is_there() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException, as_json: bool) -> None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` explains it" if context is not None else ""
    if as_json:
        text = (
            "a command is missing" if isinstance(error, click.exceptions.NoArgsIsHelpError) else error.format_message()
        )
        _say_json("usage", text, hint)
        return
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the whole help
        click.echo(error.format_message(), err=True)
        return
    if context is not None:
        click.echo(context.get_usage(), err=True)
    say(f"logtool: {error.format_message()}")
    if hint:
        click.echo(f"  {hint}", err=True)


def _failed(error: Exception, settings: Settings, as_json: bool) -> int:
    failure = errors.explain(error)
    if failure is None:
        fd, path = tempfile.mkstemp(prefix="logtool-bug-", suffix=".txt")
        with os.fdopen(fd, "w") as report:
            report.write(f"logtool {' '.join(sys.argv[1:])}\npython {sys.version}\n\n")
            traceback.print_exception(error, file=report)
        text = f"this is a bug ({type(error).__name__}: {error}); the report is in {path}"
        failure = errors.Failure(errors.BUG, "bug", text)
    if as_json:
        _say_json(failure.code, str(failure), failure.hint)
    else:
        say(f"logtool: {failure}")
        if failure.hint and not settings.quiet:
            say(f"  {failure.hint}")
    return failure.exit_code


def _say_json(code: str, message: str, hint: str) -> None:
    click.echo(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), err=True)

"""The help of every command ends with examples, and every example is a command line that is understood."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tools.logtool.cli import COMMANDS, Settings, root
from tools.logtool.lib.examples import EXAMPLES
from tools.logtool.run import run

pytestmark = pytest.mark.whole


def leaves() -> Iterator[tuple[str, click.Command]]:
    with click.Context(root) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            if isinstance(command, click.Group):
                yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())
            elif command is not None:
                yield name, command


ALL = dict(leaves())


def test_examples_are_of_commands_that_exist() -> None:
    assert set(EXAMPLES) <= set(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_help_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "-h"]) == 0
    text = capsys.readouterr().out
    assert name in EXAMPLES, "an example is missing in tools/logtool/lib/examples.py"
    assert f"\nExamples:\n  logtool {EXAMPLES[name][0]}\n" in text


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in EXAMPLES.items() for line in lines])
def test_examples_are_understood(name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("data/topics/1/0/00000000000000000001.log", "blipmq.wal", "data/VERSION", "topics.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    words = shlex.split(line)
    redirected = next((at for at, word in enumerate(words) if word.startswith(">")), len(words))
    words = words[:redirected]
    while words[0].startswith("--"):  # global options with a value
        words = words[2:]
    parts = name.split()
    assert words[: len(parts)] == parts
    if words[-1] == "--help":
        return
    with ALL[name].make_context(name, words[len(parts) :], obj=Settings(environment={})) as context:
        assert context.command is ALL[name]


def test_lists_of_commands_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted({name.split()[0] for name in ALL if " " in name}):
        assert run([name, "--help"]) == 0
        assert "..." not in capsys.readouterr().out.split("Commands:")[1]

"""logtool generate man: a page for each command, complete, and taken by man and mandoc without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from netserver.config.table import SECTIONS
from tests.unit.conftest import Logtool
from tools.logtool.cli import COMMANDS, root
from tools.logtool.lib.manpages import pages, plain

pytestmark = pytest.mark.whole

MANDOC, MAN = shutil.which("mandoc"), shutil.which("man")
MACROS = {".TH", ".SH", ".PP", ".TP", ".nf", ".fi"}


def shown(page: str) -> str:
    """About what a reader sees."""
    text = re.sub(r"\\f[BR]|\\&", "", page).replace("\\-", "-").replace("\\(ti", "~").replace("\\(ha", "^")
    return text.replace("\\e", "\\")


def test_every_command_option_and_setting_has_its_place() -> None:
    made = pages()
    assert set(made) == {f"logtool-{name}.1" for name in COMMANDS} | {
        *("logtool.1", "engine-server.8", "quintlog.toml.5")
    }
    with click.Context(root) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            page = shown(made[f"logtool-{name}.1"])
            below = command.commands.values() if isinstance(command, click.Group) else [command]
            shared = {param.opts[0] for param in root.params}
            for one in below:
                options = [param.opts[0] for param in one.params if isinstance(param, click.Option)]
                assert [option for option in options if option not in shared and option not in page] == []
                assert one.help is not None
                assert one.help.split("\n")[0].split()[0] in page
    settings = shown(made["quintlog.toml.5"])
    for section, known in SECTIONS.items():
        assert f"[{section}]" in settings
        assert [name for name in known if f"\n{name} = " not in settings] == []
    assert "QUINTLOG_CONTEXT" in made["logtool.1"]
    for code in ("0", "1", "2", "3", "70"):
        assert f".TP\n\\fB{code}\\fR\n" in made["logtool.1"]
        assert f".TP\n\\fB{code}\\fR\n" in made["engine-server.8"]


def test_nothing_is_taken_for_a_macro() -> None:
    for name, page in pages().items():
        found = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
        assert found <= MACROS, name
        assert "\b" not in page
        assert all(line == line.rstrip() for line in page.splitlines()), name
    assert plain(".PP \\n\n'x a-b") == "\\&.PP \\en\n\\&'x a\\-b"


def test_they_are_written_where_man_looks(tmp_path: Path, logtool: Logtool) -> None:
    code, out, err = logtool("generate", "man", str(tmp_path / "man"))
    assert (code, out, f"{len(pages())} pages" in err) == (0, "", True)
    written = {str(path.relative_to(tmp_path / "man")) for path in (tmp_path / "man").rglob("*.*")}
    assert written == {f"man{name[-1]}/{name}" for name in pages()}
    assert logtool("generate", "man", str(tmp_path / "man"))[0] == 0
    (tmp_path / "file").write_text("")
    code, _, err = logtool("generate", "man", str(tmp_path / "file" / "man"))
    assert (code, "Traceback" in err) == (3, False)


@pytest.mark.skipif(MANDOC is None, reason="mandoc is not installed")
def test_mandoc_has_no_complaints(tmp_path: Path) -> None:
    assert MANDOC is not None
    for name, page in pages().items():
        (tmp_path / name).write_text(page)
    done = subprocess.run(
        [MANDOC, "-T", "lint", "-W", "warning", *sorted(pages())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.skipif(MAN is None, reason="man is not installed")
def test_man_shows_them(tmp_path: Path, logtool: Logtool) -> None:
    logtool("generate", "man", str(tmp_path))
    assert MAN is not None
    done = subprocess.run(
        [MAN, "-M", str(tmp_path), "--warnings", "logtool-cat"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--contains" in done.stdout
    assert done.stderr == ""

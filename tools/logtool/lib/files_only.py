"""The commands that need a log's files and cannot be done by its server, each with what to do. ``docs/logtool.md`` has
the list; all others work by directory, address and context."""

from __future__ import annotations

from typing import Final, NamedTuple

from tools.logtool.lib.errors import CONFLICT, USAGE

HERE: Final = "run it on the server's machine with --data-dir DIR"


class Reason(NamedTuple):
    """Why a command cannot go through a server.

    Attributes:
        text: a sentence after the command's name, with what to do.
        exit_code: of the refusal.
    """

    text: str
    exit_code: int = USAGE


FILES_ONLY: Final[dict[str, Reason]] = {
    "repair": Reason(
        "changes files that a running server has open: stop the server, then run it on its machine with --data-dir DIR",
        CONFLICT,
    ),
    "verify --repair-plan": Reason(
        "looks at files that no server may have open: stop the server, then run it on its machine with --data-dir DIR",
        CONFLICT,
    ),
    "upgrade check": Reason(f"is about this program and a directory: {HERE}; works while the server runs"),
    "archive-segments": Reason(f"copies segment files byte for byte: {HERE}; works while the server runs"),
    "archive-table": Reason(f"reads segment files by the gigabyte: {HERE}; works while the server runs"),
    "spark": Reason(f"reads segment files by many processes: {HERE}; --server after NAME says where records go"),
}

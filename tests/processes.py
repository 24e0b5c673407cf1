"""Programs that tests start."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any


class Started(subprocess.Popen[Any]):
    """`subprocess.Popen` for a ``with``: a test that fails neither waits for the program's own end nor leaves it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, at)

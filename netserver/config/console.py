"""The section ``[console]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from netserver.config.settings import TextSetting, choice_setting, flag_setting, setting

FULL: Final = "full"
READ_ONLY: Final = "read-only"
OFF: Final = "off"
_BASE_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~-]+/)*")


@dataclass(frozen=True)
class ConsoleSection:
    """The console: pages for people on the admin listener."""

    mode: str = choice_setting(
        FULL, (FULL, READ_ONLY, OFF), "What the console's pages may change: what the role allows, nothing, or no pages."
    )
    payloads: bool = flag_setting(True, "Show keys and values of records to those who may read them.")
    base_path: str = setting(
        "/", TextSetting("text", help="Path under which a proxy shows the admin listener, such as /quintlog/.")
    )

    def problems(self) -> Iterator[str]:
        """What is wrong."""
        if not _BASE_PATH.fullmatch(self.base_path) or "/." in self.base_path:
            yield (
                f"[console] base_path = {self.base_path[:80]!r}: expected a path that begins and ends with /, its "
                "parts of A-Z a-z 0-9 . _ ~ -"
            )

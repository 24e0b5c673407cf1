"""What is wrong with a batch of records, by the protocol's codes."""

from __future__ import annotations

from typing import Final

CORRUPT: Final = 2
TOO_LARGE: Final = 10
OUT_OF_SEQUENCE: Final = 45
OLD_EPOCH: Final = 47
UNKNOWN_CODEC: Final = 76
INVALID_RECORD: Final = 87


class RecordsError(Exception):
    """Records that are not stored.

    Attributes:
        code: error code of the protocol.
        text: why, for the answer's message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

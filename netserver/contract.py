"""What an acknowledgement means here, for people: told at the start and by the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from netserver.config.sections import ServerConfig

CONTRACTS: Final = {
    "always": (
        "An acknowledgement means: the record is in its segment file and that file is synced to disk (fdatasync).\n"
        "Readers see a record only after that. A crash or power cut takes back nothing that was acknowledged or read."
    ),
    "interval": (
        "An acknowledgement means: the record is written; it is synced to disk within {sync_interval}.\n"
        "A crash of this process takes back nothing; a crash of the machine may take back that much time."
    ),
    "never": (
        "An acknowledgement means: the record is written; the operating system syncs it to disk when it likes.\n"
        "A crash of this process takes back nothing; a crash of the machine takes back what was not synced."
    ),
}


def contract(config: ServerConfig) -> str:
    """What an acknowledgement means for topics without a durability of their own."""
    topic = config.engine.topic
    text = CONTRACTS[topic.durability].format(sync_interval=f"{topic.sync_interval_ms / 1000:g} s")
    return f"{text}\nTopics may have another durability of their own."

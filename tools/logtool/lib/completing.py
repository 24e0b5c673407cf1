"""What a shell offers after a command: names of topics and ids of subscriptions, as the log has them now.

A shell that waits for its user must never hang: what takes longer than a fifth of a second, or fails, offers nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import CompletionItem

from tools.logtool.cli import Settings
from tools.logtool.lib.limits import COMPLETED_NAMES_MAX

PATIENCE_S: Final = 0.2
"""What a person does not yet take for a hanging shell; asking a server took 0.06 s."""
SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%+,/=-]*")
"""What a shell takes as it is. Any client can make topics: `$(...)` as a name must not get onto a command line."""


def topic_names(settings: Settings, beginning: str) -> list[str]:
    """Names that begin so, of those that mean nothing else to a shell.

    Raises:
        Failure, EngineError, OSError: the log cannot be asked.
    """
    from tools.logtool.lib.address import admin_of

    if settings.data_dir is None:
        settings.timeout_s = PATIENCE_S
        admin = admin_of(settings)
        assert admin is not None
        items = admin.call("GET", "/v1/topics").get("items", [])
        names = [str(item["name"]) for item in items if "name" in item]
    else:
        from engine.reader import DirectoryReader
        from tools.logtool.lib.stored import stored_topics

        reader = DirectoryReader(settings.data_dir)
        try:
            names = [topic.name.decode("utf-8", "replace") for topic in stored_topics(reader)]
        finally:
            reader.close()
    return sorted(name for name in names if name.startswith(beginning) and SAFE.fullmatch(name))[:COMPLETED_NAMES_MAX]


def subscription_ids(settings: Settings, beginning: str) -> list[str]:
    """Ids that begin so. Raises as `topic_names`."""
    from tools.logtool.lib.address import admin_of
    from tools.logtool.lib.stored_subscriptions import StoredSubscriptions

    settings.timeout_s = min(settings.timeout_s, PATIENCE_S)
    admin = admin_of(settings)
    if admin is not None:
        numbers = [int(item["id"]) for item in admin.call("GET", "/v1/subscriptions").get("items", [])]
    else:
        numbers = [entry.id for entry in StoredSubscriptions(settings).entries]
    return [text for text in map(str, sorted(numbers)) if text.startswith(beginning)][:COMPLETED_NAMES_MAX]


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For an argument that is a topic's name."""
    return _looked_up(ctx, incomplete, topic_names)


def complete_subscription(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For an argument that is a subscription's id."""
    return _looked_up(ctx, incomplete, subscription_ids)


def _looked_up(
    ctx: click.Context, incomplete: str, names: Callable[[Settings, str], list[str]]
) -> list[CompletionItem]:
    """What the log says in time. Nothing is told of what went wrong: a shell would show it as a name."""
    found: list[str] = []
    settings = ctx.ensure_object(Settings)
    done = threading.Event()

    def look() -> None:
        try:
            settings.complete()
            settings.find_address()
            found.extend(names(settings, incomplete))
        except Exception:  # noqa: BLE001, S110 - see above
            pass
        finally:
            done.set()

    # A thread that is still busy, with a directory on a server that does not answer perhaps, ends with the process.
    threading.Thread(target=look, daemon=True).start()
    return [CompletionItem(name) for name in found] if done.wait(PATIENCE_S) else []


def complete_protocol(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `--via`."""
    from tools.logtool.lib.address import DEFAULT_LISTENERS

    return [CompletionItem(name) for name in DEFAULT_LISTENERS if name.startswith(incomplete)]


def complete_setting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For KEY=VALUE of topics: the names, and the words of those that take words."""
    from engine.config import TopicConfig, settings, spelled

    known = settings(TopicConfig)
    offered = [f"{spelled(name, one)}={word}" for name, one in known.items() for word in one.choices or ("",)]
    return [CompletionItem(text) for text in offered if text.startswith(incomplete)]

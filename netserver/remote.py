"""Object storage of a server: begun at its start, given a moment at its stop, and told of."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from netserver.errors import ConfigError
from netserver.limits import DRAIN_POLL_S, DRAIN_REMOTE_S

if TYPE_CHECKING:
    from engine.log import Log
    from netserver.config.remote import RemoteSection

log = logging.getLogger(__name__)


def begin(opened: Log, section: RemoteSection, address: str) -> None:
    """Begins to store a log where the section says. The store is not waited for.

    Raises:
        ConfigError: there can be no bucket.
    """
    from engine.remote.bucket import Bucket
    from engine.remote.store import StoreError
    from engine.shipping.shipper import ShippingConfig

    settings: dict[str, Any] = {"endpoint": section.endpoint, "region": section.region}
    try:
        given = {name: value for name, value in settings.items() if value}
        bucket = Bucket.open(section.url, given, section.timeout_ms / 1000)
    except (StoreError, ImportError) as error:
        raise ConfigError(f"[remote] url = {section.url!r}: {error}") from error
    config = ShippingConfig(section.commit_interval_ms, section.piece_bytes, section.grace_ms, address)
    opened.ship(bucket, config)


async def finish(opened: Log) -> None:
    """Waits a moment for what is not stored yet: the next start goes on with it, but who restores would miss it."""
    shipper = opened.shipper
    if shipper is None:
        return
    deadline = asyncio.get_running_loop().time() + DRAIN_REMOTE_S
    while not shipper.is_idle and not shipper.problem:
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(DRAIN_POLL_S)
    records, size_bytes, _ = shipper.lag
    if records:
        log.warning("%d records of %d bytes are not in object storage yet: the next start goes on", records, size_bytes)


def document(opened: Log, url: str) -> dict[str, Any] | None:
    """What ``/v1/status`` says of it; None: nothing is stored anywhere else."""
    shipper = opened.shipper
    if shipper is None:
        return None
    records, size_bytes, seconds = shipper.lag
    progress = shipper.progress
    return {
        "url": url,
        "phase": progress.phase,
        "problem": shipper.problem,
        "lineage": progress.lineage,
        "epoch": progress.epoch,
        "version": progress.version,
        "commits": progress.commits,
        "lag_records": records,
        "lag_bytes": size_bytes,
        "lag_seconds": seconds,
    }

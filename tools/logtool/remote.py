"""`remote`: a log as it is stored in a bucket. Nothing here needs a server, or the machine on which it was."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.errors import Corrupt
from engine.files.lock import is_in_use
from engine.files.system import SystemFiles
from tools.logtool.backup import empty_directory
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure, Finding
from tools.logtool.lib.output import Column, count_text, size_text, time_text
from tools.logtool.lib.progress import BytesProgress

if TYPE_CHECKING:
    from engine.remote.store import ObjectStore

F = TypeVar("F", bound=Callable[..., Any])
COLUMNS = (Column("object"), Column("reason"))
PARTIAL = ".partial"
"""At the end of the name of a directory that is being made."""
METADATA = "/latest/api/token"
"""Where a machine of Amazon's has credentials: asked when there are none elsewhere, and elsewhere nobody answers."""


def _place(command: F) -> F:
    """Options that say where the bucket is."""
    url = click.option(
        "--url",
        required=True,
        envvar="QUINTLOG_REMOTE_URL",
        metavar="URL",
        help="Bucket and prefix, s3://BUCKET/PREFIX [QUINTLOG_REMOTE_URL].",
    )
    endpoint = click.option(
        "--endpoint",
        envvar="QUINTLOG_REMOTE_ENDPOINT",
        metavar="URL",
        help="Of a store that is not Amazon's [QUINTLOG_REMOTE_ENDPOINT].",
    )
    return url(endpoint(command))


def _opened(url: str, endpoint: str | None, timeout_s: float) -> ObjectStore:
    """The bucket, of which something was asked once. Raises Failure, Denied."""
    from engine.remote.bucket import Bucket
    from engine.remote.names import HEAD
    from engine.remote.store import Absent, Denied, Unclear

    try:
        bucket = Bucket.open(url, {"endpoint": endpoint} if endpoint else {}, timeout_s)
    except ImportError as problem:
        text = f"{problem.name} is missing: install the extra remote, in a checkout pip install -e '.[remote]'"
        raise Failure(errors.USAGE, "not_installed", text) from problem
    except Denied as problem:
        raise Failure(errors.USAGE, "invalid_url", str(problem), "--url is s3://BUCKET/PREFIX") from problem
    try:
        bucket.describe(HEAD)
    except Absent:
        pass
    except Unclear as error:  # it is asked again, more patiently, but for credentials that are nowhere
        if METADATA in str(error):
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run it where the machine has a role"
            raise Failure(errors.REFUSED, "no_credentials", "no credentials were found", hint) from error
    return bucket


@contextmanager
def _told() -> Iterator[None]:
    """Damage of an object as a failure that says where to go on."""
    try:
        yield
    except Corrupt as problem:
        hint = "`logtool remote verify --full` names all that is damaged"
        raise Failure(errors.FINDING, "corrupt", str(problem), hint) from problem


@click.group(cls=Group)
def remote() -> None:
    """A log in object storage: look at it, verify it, make a data directory of it. Credentials are found as Amazon's
    own tools find them (AWS_ACCESS_KEY_ID and others, or the role of the machine)."""


@remote.command()
@_place
@click.pass_obj
def status(settings: Settings, url: str, endpoint: str | None) -> None:
    """What a bucket holds, by its head and the pages of its catalog.

    Who writes it, which version it is at and since when, how much is stored, and which versions can be restored. It
    takes a request for the head, one for each page, and two more.
    """
    from engine.remote.names import HEAD, PINS
    from engine.remote.objects import Objects
    from engine.remote.snapshot import read_snapshot, versions

    with Objects(_opened(url, endpoint, settings.timeout_s)) as objects, _told():
        snapshot = read_snapshot(objects)
        written = objects.patiently(lambda: objects.store.describe(HEAD))
        pins = objects.patiently(lambda: objects.store.list_below(PINS))
    head, catalog = snapshot.head, snapshot.catalog
    item = {
        "url": url,
        "lineage": head.lineage,
        "directory_id": head.directory_id,
        "epoch": head.epoch,
        "version": head.version,
        "written": time_text(written.modified_ms),
        "owner": head.owner,
        "address": head.address,
        "released": head.released,
        "topics": len(catalog.topics),
        "partitions": len(catalog.tail),
        "segments": len(catalog.segments),
        "segment_bytes": sum(segment.size_bytes for segment in catalog.segments),
        "pieces": len(catalog.pieces),
        "piece_bytes": sum(ref.size_bytes for ref in catalog.pieces),
        "state_version": 0 if head.state is None else head.state.name.version,
        "state_bytes": 0 if head.state is None else head.state.size_bytes,
        "deltas": len(snapshot.deltas),
        "pages": len(head.catalog),
        "lost_ranges": len(catalog.lost),
        "pins": len(pins),
        "versions": versions(head),
    }
    shows = dict.fromkeys(("segment_bytes", "piece_bytes", "state_bytes"), size_text)
    settings.output.fields(item, shows | {"versions": lambda found: " ".join(map(str, found))})


@remote.command()
@click.option("--full", is_flag=True, help="Read every byte; without it head, pages, names and sizes.")
@_place
@click.pass_obj
def verify(settings: Settings, url: str, endpoint: str | None, full: bool) -> None:
    """Is everything there that the head names, and is it what it should be?

    Without --full: the head, the pages of its catalog, and for every other object that it is there and as long as it
    should be. With it: every hash, every value of the state, whether the pieces give whole segments, and whether each
    partition has all numbers from its start to its end. All problems are named, one line for each; exit code 1 when
    there are any. Nothing is changed, and a primary may go on meanwhile.
    """
    from engine.remote.objects import Objects
    from engine.remote.verifying import Verifier

    output, found = settings.output, list[Corrupt]()
    store = _opened(url, endpoint, settings.timeout_s)
    with BytesProgress(output, "verified") as progress, Objects(store, progress.add) as objects:
        verified = Verifier(objects, found.append).run(
            full=full, on_total=lambda size_bytes: setattr(progress, "total_bytes", size_bytes)
        )
    snapshot = verified.snapshot
    items = [{"object": str(problem.path), "position": problem.position, "reason": problem.reason} for problem in found]
    more = {
        "version": 0 if snapshot is None else snapshot.version,
        "objects": verified.objects,
        "unnamed_objects": verified.unnamed,
        "unnamed_bytes": verified.unnamed_bytes,
    }
    if items or output.form != "table":
        output.items(COLUMNS, items, **more)
    if snapshot is not None:
        depth = "read and verified" if full else "there; --full reads them"
        output.note(f"version {snapshot.version}: {count_text(verified.objects, 'object')} {depth}")
    if verified.unnamed:
        text = (
            f"{count_text(verified.unnamed, 'object')} ({size_text(verified.unnamed_bytes)}) are not named by the head"
        )
        output.note(f"{text}: on their way into it, or to be removed by the primary")
    if found:
        raise Finding


@remote.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--at", type=click.IntRange(1), metavar="VERSION", help="The newest version up to this one; the newest.")
@_place
@click.pass_obj
def restore(settings: Settings, url: str, endpoint: str | None, target: Path, at: int | None) -> None:
    """Make the new data directory DIR of what the bucket holds, and compare every byte with its hash.

    DIR must be empty or not be there; it is made as DIR.partial, which gets its name when all of it is whole. Topics,
    records, subscriptions, sessions and positions are in it as of one moment; admin.token, certificates, access keys
    and configuration are not. Each partition goes on in a new segment, above all numbers that may have been given out.
    Exit code 1: an object is damaged or missing, which is named, and nothing is left; or the log itself had damage
    when it was stored, which is named, and DIR has it as it was.
    """
    began = time.monotonic()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Failure(errors.CONFLICT, "not_empty", f"{target} is not empty; name a directory that is, or a new one")
    partial = target.with_name(target.name + PARTIAL)
    if partial.is_dir() and any(partial.iterdir()) and not is_in_use(partial):
        text = f"{partial} is what a restore left that was killed: remove it, and run this again"
        raise Failure(errors.CONFLICT, "not_empty", text)
    store = _opened(url, endpoint, settings.timeout_s)
    with empty_directory(partial), _told():
        item, lost = _restored(settings, store, partial, at)
        os.rename(partial, target)
    SystemFiles().sync_dir(target.absolute().parent)
    for text in lost:
        settings.output.warn(f"logtool: {text}")
    settings.output.fields({"data_dir": str(target.absolute()), **item}, {"bytes": size_text})
    seconds = time.monotonic() - began
    settings.output.note(f"{size_text(item['bytes'])} in {seconds:.1f} s, {size_text(int(item['bytes'] / seconds))}/s")
    if lost:
        raise Finding


def _restored(
    settings: Settings, store: ObjectStore, partial: Path, at: int | None
) -> tuple[dict[str, Any], list[str]]:
    """What was restored, and the damage that the log had already."""
    from engine.remote.objects import Objects
    from engine.remote.pinning import PinKeeper
    from engine.remote.restoring import Restoring
    from engine.remote.snapshot import read_head_of, read_snapshot

    with BytesProgress(settings.output, "restored") as progress:
        pin: PinKeeper | None = None

        def read(size_bytes: int) -> None:
            progress.add(size_bytes)
            if pin is not None:
                pin.beat()

        with Objects(store, read) as objects:
            head = read_head_of(objects)
            version = min(head.version, at or head.version)
            with PinKeeper(store, head.lineage, version, f"{socket.gethostname()[:40]}-{os.getpid()}") as pin:
                if pin.problem:
                    text = "the bucket may only be read: nothing holds up the primary's collector meanwhile"
                    settings.output.note(f"{text} ({pin.problem})")
                snapshot = read_snapshot(objects, at)  # after the pin: what this one names stays
                progress.total_bytes = snapshot.size_bytes
                done = Restoring(objects, snapshot, partial).run()
    item = {
        "version": snapshot.version,
        "epoch": snapshot.head.epoch,
        "topics": done.topics,
        "partitions": done.partitions,
        "segments": done.segments,
        "bytes": done.size_bytes,
        "damaged": len(done.lost),
    }
    return item, done.lost

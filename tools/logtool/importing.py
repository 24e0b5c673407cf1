"""`import`: publishes the files of other brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.blipmq_wal import Damage, NotAWal, WalRecord, read_wal
from tools.logtool.lib.changes import FileChanges, ServerChanges, changes
from tools.logtool.lib.errors import Failure, Finding
from tools.logtool.lib.limits import IMPORT_BATCH_BYTES, IMPORT_BATCH_RECORDS
from tools.logtool.lib.output import Column, count_text, name_text, number, size_text

COLUMNS = (
    Column("topic"),
    number("records"),
    number("bytes", show=size_text),
)
SELF_TEST = (b"test", b"hello")


@click.group("import", cls=Group)
def importing() -> None:
    """Take in the files of other brokers."""


@importing.command("blipmq-wal")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--from-byte", type=click.IntRange(0), default=0, metavar="N", help="Pass over what lies before it.")
@click.option("--without-self-test", is_flag=True, help="Leave out `hello` in topic `test`: each start writes one.")
@click.option("--dry-run", is_flag=True, help="Read and count, and change nothing.")
@click.pass_obj
def blipmq_wal(settings: Settings, file: Path, from_byte: int, without_self_test: bool, dry_run: bool) -> None:
    """Publish what the original BlipMQ daemon has in its write-ahead log FILE, in its order, with its QoS.

    The log does not say which messages were acknowledged, nor when they were published: all of them come in, with the
    time of the import. Damage is told and passed over (exit code 1). What an import that broke off has stored is told,
    and --from-byte goes on there. Through the server, or on the files when none is running.
    """
    counts: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    damages: list[Damage] = []
    batches = _batches(file, from_byte, without_self_test, damages)
    if dry_run:
        for batch in batches:
            _count(batch, counts, sizes)
    else:
        with changes(settings) as change:
            _store(change, batches, counts, sizes)
    items = [{"topic": name_text(topic), "records": counts[topic], "bytes": sizes[topic]} for topic in sorted(counts)]
    for damage in damages:
        where = "at the end" if damage.is_tail else f"at byte {damage.position}"
        settings.output.warn(f"logtool: {file}: {damage.size_bytes} bytes {where} are not a whole record")
    settings.output.items(COLUMNS, items)
    settings.output.note(f"{'would import' if dry_run else 'imported'} {count_text(sum(counts.values()), 'record')}")
    if damages:
        raise Finding


def _batches(file: Path, from_byte: int, without_self_test: bool, damages: list[Damage]) -> Iterator[list[WalRecord]]:
    """Runs of records of one topic and QoS, as large as one request may be."""
    batch: list[WalRecord] = []
    size_bytes = 0
    with file.open("rb") as stream:
        try:
            for found in read_wal(stream):
                if isinstance(found, Damage):
                    damages.append(found)
                    continue
                if found.position < from_byte or (without_self_test and (found.topic, found.body) == SELF_TEST):
                    continue
                if batch and (
                    (batch[0].topic, batch[0].qos) != (found.topic, found.qos)
                    or len(batch) == IMPORT_BATCH_RECORDS
                    or size_bytes + len(found.body) > IMPORT_BATCH_BYTES
                ):
                    yield batch
                    batch, size_bytes = [], 0
                batch.append(found)
                size_bytes += len(found.body)
        except NotAWal as error:
            raise Failure(errors.UNREACHABLE, "format", f"{file}: {error}") from None
    if batch:
        yield batch


def _store(
    change: ServerChanges | FileChanges,
    batches: Iterator[list[WalRecord]],
    counts: Counter[bytes],
    sizes: Counter[bytes],
) -> None:
    for batch in batches:
        try:
            change.append(batch[0].topic, [record.body for record in batch], not batch[0].qos)
        except Exception as error:
            failure = errors.explain(error)
            if failure is None:
                raise
            stored = count_text(sum(counts.values()), "record")
            hint = f"stored: {stored}; --from-byte {batch[0].position} goes on after them"
            raise Failure(failure.exit_code, failure.code, str(failure), hint) from error
        _count(batch, counts, sizes)


def _count(batch: list[WalRecord], counts: Counter[bytes], sizes: Counter[bytes]) -> None:
    counts[batch[0].topic] += len(batch)
    sizes[batch[0].topic] += sum(len(record.body) for record in batch)

"""`archive-segments`: sealed segments to object storage or any other place, while the server runs."""

from __future__ import annotations

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.errors import USAGE, Failure, Finding
from tools.logtool.lib.output import Column, bytes_fields, count_text, number, size_text
from tools.logtool.lib.progress import BytesProgress

COLUMNS = (
    Column("topic"),
    number("partition"),
    number("first"),
    number("next"),
    number("records"),
    number("bytes", show=size_text),
    Column("path"),
)


@click.command("archive-segments", cls=Command)
@click.argument("uri", metavar="URI")
@click.pass_obj
def archive_segments(settings: Settings, uri: str) -> None:
    """Copy sealed segments that are not at URI yet, and a manifest that lists all of them.

    URI is a directory, or what pyarrow understands: s3://BUCKET/PREFIX?region=..., gs://, abfs://, hdfs://. Every batch
    is checked on the way; exit code 1 says that damage was met, or that retention was faster. To be run at intervals
    shorter than retention. Spark reads the archive alone (its path) or before the directory (option archive).
    """
    try:
        from tools.spark.archive.archiving import archive
        from tools.spark.archive.manifest import Place
    except ImportError as problem:
        raise Failure(
            USAGE,
            "not_installed",
            f"{problem.name} is missing: install the extra arrow, in a checkout pip install -e '.[arrow]'",
        ) from problem
    with BytesProgress(settings.output, "archived") as progress:
        report = archive(settings.need_directory("archive-segments"), Place(uri), progress.add)
    names = {topic.id: topic.name for topic in report.manifest.topics}
    items = [
        bytes_fields("topic", names[entry.topic])
        | {
            "partition": entry.partition,
            "first": entry.first,
            "next": entry.next,
            "records": entry.records,
            "bytes": entry.size_bytes,
            "path": entry.path,
        }
        for entry in report.copied
    ]
    output = settings.output
    output.items(COLUMNS, items)
    size_bytes = sum(entry.size_bytes for entry in report.copied)
    total = len(report.manifest.segments)
    if report.manifest.version:
        copied = f"{count_text(len(items), 'segment')} copied ({size_text(size_bytes)})"
        output.note(f"{copied}; {total} in manifest {report.manifest.version}")
    else:
        output.note("no segment is sealed yet, and nothing was written: see segment_bytes and segment_age")
    for finding in report.findings:
        output.warn(finding)
    if report.findings:
        raise Finding

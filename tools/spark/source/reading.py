"""On the executors: the ranges of a task as Arrow record batches. Every batch's hashes are checked before it counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import Corrupt
from engine.files.system import Files, SystemFiles
from engine.formats.record import BatchError, BundleError
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.limits import SCAN_BYTES
from engine.reader import Loss, headers_of, opened
from engine.segments.damage import Damage, Found, careful_read, walk
from tools.spark.limits import ARCHIVE_BLOCK_BYTES, RECORD_BATCH_BYTES, RECORD_BATCH_ROWS
from tools.spark.source.arrow import record_batches
from tools.spark.source.columns import ColumnsFull
from tools.spark.source.decoder import Decoder
from tools.spark.source.options import Options, hinted
from tools.spark.source.parts import Range
from tools.spark.source.plan import Task, lost

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("quintlog.spark")


@dataclass(slots=True)
class TaskReader:
    """Reads one task.

    Raises (its methods):
        Corrupt: damage, unless it is to be skipped: names the file and the numbers that it took.
        DataLoss: a file is gone.
    """

    task: Task
    schema: pa.Schema
    options: Options
    skipped_places: int = 0
    """Damaged places that were skipped, each a batch or several in a row."""
    skipped_numbers: int = 0
    """Numbers of this task that they took."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches, of 1 to RECORD_BATCH_ROWS rows."""
        decoder = Decoder(*(name in self.schema.names for name in ("key", "value", "offset", "timestamp", "headers")))
        for place in self.task.ranges:
            for item in self._walk(place):
                if isinstance(item, Damage):
                    self._damaged(place, item)
                    continue
                try:
                    decoder.add(item.data, item.start, item.end, self.task.first_seq, self.task.end_seq)
                except (BatchError, BundleError, ColumnsFull):
                    yield from record_batches(decoder.take(), self.task, self.schema)
                    self._add_singly(decoder, place, item)
                if decoder.rows >= RECORD_BATCH_ROWS or decoder.key_size + decoder.value_size >= RECORD_BATCH_BYTES:
                    yield from record_batches(decoder.take(), self.task, self.schema)
        yield from record_batches(decoder.take(), self.task, self.schema)
        if self.skipped_places:
            where = f"{self.task.topic}:{self.task.partition}"
            LOG.warning("%s: %d records skipped in %d places", where, self.skipped_numbers, self.skipped_places)

    def _walk(self, place: Range) -> Iterator[Found | Damage]:
        try:
            yield from self._file(place)
        except FileNotFoundError:
            path = self._archived_copy(place)
            if path is not None:
                yield from self._file(replace(place, path=path, archived=True))
                return
            first = max(place.first_seq, self.task.first_seq)
            last = min(place.next_seq, self.task.end_seq) - 1
            where = f"{self.task.topic}:{self.task.partition}"
            lost(self.options, f"{where}: {place.path} was removed while it was read; lost: records {first} to {last}")

    def _file(self, place: Range) -> Iterator[Found | Damage]:
        """Raises FileNotFoundError before anything was read, or never."""
        files, path, block_bytes = self._files(place), Path(place.path), SCAN_BYTES
        if place.archived:
            block_bytes = ARCHIVE_BLOCK_BYTES
        with opened(files, path) as fd:
            header = parse_header(files.read(fd, HEADER_BYTES, 0), path)
            if header.segment_id != place.segment_id:
                raise FileNotFoundError(f"{path} is another segment now")
            read = careful_read(files, fd, path=path)
            for item in walk(read, place.position, place.end, place.segment_id, place.first_seq, block_bytes):
                if item is not None:
                    yield item

    def _files(self, place: Range) -> Files:
        if not place.archived:
            return SystemFiles()
        from tools.spark.archive.manifest import place_of

        assert self.options.archive is not None
        return place_of(self.options.archive).files

    def _archived_copy(self, place: Range) -> str | None:
        """Where a segment is that retention has removed from the directory in the meantime."""
        if self.options.archive is None or place.archived:
            return None
        from tools.spark.archive.manifest import find_segment

        return find_segment(self.options.archive, place.segment_id)

    def _add_singly(self, decoder: Decoder, place: Range, found: Found) -> None:
        """Adds batch by batch what cannot be added at once."""
        for header in headers_of(found, place.segment_id):
            try:
                decoder.add(found.data, header.position, header.end, self.task.first_seq, self.task.end_seq)
            except (BatchError, BundleError) as error:
                position = found.position + header.position
                end = found.position + header.end
                self._damaged(place, Damage(position, end, header.first_seq, header.last_seq, str(error)))

    def _damaged(self, place: Range, damage: Damage) -> None:
        if damage.last_seq < damage.first_seq:  # nothing follows in the range: what comes next tells
            damage = replace(damage, last_seq=place.next_seq - 1)
        if damage.first_seq >= self.task.end_seq or damage.last_seq < self.task.first_seq:
            return
        text = Loss(Path(place.path), damage).text
        if not self.options.skip_damage:
            lost_records = f"{damage.reason}; lost: records {damage.first_seq} to {damage.last_seq}"
            raise Corrupt(place.path, damage.position, hinted(lost_records, self.options.damage_hint))
        LOG.warning("skipped: %s", text)
        self.skipped_places += 1
        last_seq = min(damage.last_seq, self.task.end_seq - 1)
        self.skipped_numbers += last_seq + 1 - max(damage.first_seq, self.task.first_seq)

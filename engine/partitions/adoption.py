"""What the state does not know of partitions: it is missing, damaged, or an older copy that was put back.

Topics and partitions are taken in again from their directories, with the numbers that their files say.
"""

from __future__ import annotations

import json

from engine.context import EngineContext
from engine.directory_layout import TOPIC_FILE
from engine.errors import Corrupt, EngineError, InvalidConfig, NotStored, UnsupportedFormat
from engine.files.system import read_whole_file
from engine.formats.segment import HEADER_BYTES, parse_header, parse_segment_name
from engine.limits import LOST_RESERVATION, SMALL_FILE_BYTES_MAX, TOPIC_ID_MAX
from engine.reports import report
from engine.segments.watermarks import Owner
from engine.state.store import Put
from engine.state.topic_entries import Topic, reserved_key


class Adoption:
    """Owner's thread only."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._lost_bounds: dict[tuple[int, int], int] = {}
        """Bounds of reserved numbers that were lost with the state and are being written again."""

    def adopt_topics(self) -> None:
        """Takes in topics whose directory describes them but that `state` does not know (an older copy, or none)."""
        catalog = self._context.catalog
        topics = self._context.data_dir / "topics"
        for name in self._context.files.list_dir(topics):
            topic_id = _number_of(name)
            if (
                not topic_id
                or self._context.catalog.by_id(topic_id) is not None
                or topic_id in self._context.catalog.tombstones
            ):
                continue
            try:
                content = read_whole_file(self._context.files, topics / name / TOPIC_FILE, SMALL_FILE_BYTES_MAX)
                description = json.loads(content) if content is not None else {}
                if not isinstance(description, dict) or description.get("id") != topic_id:
                    raise InvalidConfig(f"no {TOPIC_FILE} that describes topic {topic_id}")
                topic = catalog.adopt(description)
            except (ValueError, RecursionError, EngineError, OSError) as problem:
                catalog.keep_clear(topic_id)
                report(f"{topics / name}: a directory of no known topic, left alone: {problem}")
                continue
            indexes = [_number_of(entry) for entry in self._context.files.list_dir(topics / name)]
            adopted = [index for index in indexes if index is not None and self._adopt_partition(topic, index)]
            report(f"topic {topic.name!r} was not in the state: adopted with {len(adopted)} partitions with data")

    def _adopt_partition(self, topic: Topic, index: int) -> bool:
        """Gives a partition that has files, but no number in `state`, the number that its files say."""
        directory = self._context.data_dir / "topics" / str(topic.id) / str(index)
        names = [name for name in self._context.files.list_dir(directory) if parse_segment_name(name) is not None]
        if index in topic.numbers or index >= topic.partition_count or not names:
            return False
        wanted = 0
        for name in reversed(names):
            try:
                fd = self._context.files.open(directory / name)
            except OSError:
                continue
            try:
                header = parse_header(self._context.files.read(fd, HEADER_BYTES, 0), directory / name)
            except (Corrupt, UnsupportedFormat, OSError):
                continue
            finally:
                self._context.files.close(fd)
            wanted = header.number
            break
        number = self._context.catalog.number(topic, index, wanted=wanted)
        if topic.config.durability != "always":
            # Numbers that readers saw before they were on disk; the bound was in the state.
            mark = self._context.watermarks.read(Owner(number, topic.id, index))
            seen_seq = mark.committed_seq if mark is not None else parse_segment_name(names[-1]) or 0
            bound = self._lost_bounds[topic.id, index] = seen_seq + LOST_RESERVATION
            self._context.state.submit([Put(reserved_key(topic.id, index), bound)])
        return True

    def look_for_files(self, topic: Topic, index: int) -> None:
        """A partition that has no number has no files, unless the state is an older copy. Raises NotStored."""
        try:
            if not self._context.files.exists(self._context.data_dir / "topics" / str(topic.id) / str(index)):
                return
            found = self._adopt_partition(topic, index)
        except OSError as problem:
            raise NotStored(f"cannot look for files of {topic!r} partition {index}: {problem}") from problem
        if found:
            report(f"topic {topic.name!r} partition {index} was not in the state: its files were found")

    def reserved_bound(self, topic: Topic, index: int, next_seq: int) -> int:
        """Up to which numbers of a partition, of which the next one is `next_seq`, were reserved.

        0 unless the topic has, or had, a durability below "always", or numbers were once found without records.
        """
        key = reserved_key(topic.id, index)
        try:
            stored = int(self._context.state.get(key) or 0)
        except Corrupt as problem:
            stored = next_seq + LOST_RESERVATION
            report(f"{problem}; numbers of {topic!r} partition {index} go on far behind the last one")
            self._context.state.submit([Put(key, stored)])
        return max(stored, self._lost_bounds.get((topic.id, index), 0))


def _number_of(name: str) -> int | None:
    """The number that a directory is named by, None for any other name."""
    if not name.isascii() or not name.isdigit() or len(name) > len(str(TOPIC_ID_MAX)) or str(int(name)) != name:
        return None
    return int(name)

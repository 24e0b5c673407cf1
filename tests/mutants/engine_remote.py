"""Defects in what lies in object storage; see `tests.mutants`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DOCUMENTS = "tests/unit/engine/remote/test_remote_documents.py"
PIECE = "tests/unit/engine/remote/test_remote_piece.py"
WRITES = "tests/unit/engine/remote/test_remote_writes.py"
BUCKET = "tests/unit/engine/remote/test_remote_bucket.py"
CUTTING = "tests/unit/engine/remote/test_remote_cutting.py"
SHIPPING = "tests/unit/engine/shipping/test_shipping.py"
STATE_COPY = "tests/unit/engine/remote/test_remote_state_copy.py"
RESTORING = "tests/unit/engine/remote/test_remote_restoring.py"
VERIFYING = "tests/unit/engine/remote/test_remote_verifying.py"
SNAPSHOT = "tests/unit/engine/remote/test_remote_snapshot.py"
PINS = "tests/unit/engine/remote/test_remote_pins.py"
MODEL = "tests/property/test_object_storage_model.py"

MUTANTS = (
    Mutant(
        "take a document of another form, so that one document has several tags",
        "engine/remote/documents.py::unpack_document",
        "whole = isinstance(document, dict) and _canonical(document) == content",
        "whole = isinstance(document, dict)",
        DOCUMENTS,
    ),
    Mutant(
        "take a head that was put back for another primary's",
        "engine/remote/head.py::is_later",
        "(found.epoch, found.version) > (known.epoch, known.version)",
        "True",
        WRITES,
    ),
    Mutant(
        "let a head be written that forgets a piece",
        "engine/remote/head.py::_says_all",
        "and set(both.pieces) <= set(new.pieces)",
        "",
        DOCUMENTS,
    ),
    Mutant(
        "let a head be written whose tail goes back",
        "engine/remote/head.py::_goes_on",
        "return after.first > before.committed",
        "return True",
        DOCUMENTS,
    ),
    Mutant(
        "keep the rows of a topic that is gone",
        "engine/remote/catalog.py::joined",
        "{key: end for key, end in tail.items() if key.topic not in gone}",
        "tail",
        DOCUMENTS,
    ),
    Mutant(
        "take a piece for the one that was asked for",
        "engine/remote/piece.py::read_table",
        "if str(found) != name or line.hex() != lineage:",
        "if False:",
        PIECE,
    ),
    Mutant(
        "believe the size of a key in a piece",
        "engine/remote/piece.py::parse_changes",
        "if not fits or at > end:",
        "if at > end:",
        PIECE,
    ),
    Mutant(
        "take a copy of the state that was cut short",
        "engine/remote/state_copy.py::StateUnpacker.end",
        "if not self._has_ended or self._left:",
        "if self._left:",
        STATE_COPY,
    ),
    Mutant(
        "leave small pieces as they are",
        "engine/shipping/manifest.py::Manifest.mergeable",
        "if len(self._pieces) <= PIECES_KEPT:",
        "if True:",
        SHIPPING,
    ),
    Mutant(
        "remove what a pin holds",
        "engine/shipping/collection.py::Collection.collect",
        "free = removable([(name, version) for _, name, version in due], held)",
        "free = removable([(name, version) for _, name, version in due], [])",
        SHIPPING,
    ),
    Mutant(
        "forget what was deleted by a prefix",
        "engine/state/store.py::_change",
        "made += [(key, None) for key in _delete_all(transaction, change.prefix)]",
        "_delete_all(transaction, change.prefix)",
        SHIPPING,
    ),
    Mutant(
        "go on with a lineage that another copy of the directory has gone on with",
        "engine/shipping/lineage.py::Joining._go_on",
        "if head.owner not in known.owners:",
        "if False:",
        SHIPPING,
    ),
    Mutant(
        "take any object of the name for the one that was to be made",
        "engine/remote/writes.py::stored_copy",
        "same = same and part == content[begin:end]",
        "pass",
        WRITES,
    ),
    Mutant(
        "take a head that another writer moved on for one's own",
        "engine/remote/writes.py::replace_head",
        "if found.tag != tag:",
        "if False:",
        WRITES,
    ),
    Mutant(
        "go on after a head that was never answered, without asking what became of it",
        "engine/remote/writes.py::HeadWriter.commit",
        'assert self._pending is None, "first it has to be known what became of the head before"',
        "pass",
        WRITES,
    ),
    Mutant(
        "give numbers out again that an earlier primary gave out",
        "engine/remote/writes.py::successor_tails",
        "first += ahead",
        "pass",
        f"{WRITES} {MODEL}",
    ),
    Mutant(
        "delete what the own epoch may yet name",
        "engine/remote/writes.py::orphans",
        "if name.epoch < epoch:",
        "if name.epoch <= epoch:",
        WRITES,
    ),
    Mutant(
        "let the library send a conditional write again",
        "engine/remote/bucket.py::Bucket.open",
        '{"max_retries": 0,',
        '{"max_retries": 2,',
        BUCKET,
    ),
    Mutant(
        "look for an object for ever in a bucket that is not there",
        "engine/remote/bucket.py::Bucket._told",
        "raise self._kind(error, Refused)",
        "raise Refused",
        BUCKET,
    ),
    Mutant(
        "be content with several winners of a race",
        "engine/remote/probe.py::_race",
        "len(winners) != 1",
        "len(winners) < 1",
        "tests/unit/engine/remote/test_remote_probe.py",
    ),
    Mutant(
        "cut a log that has less than what is stored of it",
        "engine/remote/cutting.py::cut",
        "if segment.end < begin or segment.last < known:",
        "if False:",
        CUTTING,
    ),
    Mutant(
        "let go of a piece though one of its segments is not stored whole",
        "engine/remote/cutting.py::done_with",
        "is_needed = any(",
        "is_needed = all(",
        CUTTING,
    ),
    Mutant(
        "put a segment together with a hole at its end",
        "engine/remote/cutting.py::Assembly.end",
        "at != tail.position",
        "at > tail.position",
        CUTTING,
    ),
    Mutant(
        "take a pin that cannot be read for none",
        "engine/remote/pins.py::_pin",
        "except (Corrupt, UnsupportedFormat):\n        return _ANY",
        "except (Corrupt, UnsupportedFormat):\n        return None",
        PINS,
    ),
    Mutant(
        "remove what a pinned head names",
        "engine/remote/pins.py::removable",
        "unnamed_in <= oldest",
        "True",
        PINS,
    ),
    Mutant(
        "take an object for what the catalog names without comparing it",
        "engine/remote/objects.py::Objects._checked",
        "if digest.hexdigest() != item.hash:",
        "if False:",
        f"{SNAPSHOT} {RESTORING}",
    ),
    Mutant(
        "let a restored log go on in the segment that another machine may write to",
        "engine/remote/restoring.py::Restoring._make_partition",
        "active.seal(files, handles)",
        "return Watermark(log_start, tail.first, tail.committed, active.position, active.position, tail.segment)",
        RESTORING,
    ),
    Mutant(
        "give out numbers of a later version again after an older one was restored",
        "engine/remote/restoring.py::Restoring._make_partitions",
        "newest = Catalog(tail={**catalog.tail, **self._snapshot.newest.tail})",
        "newest = catalog",
        RESTORING,
    ),
    Mutant(
        "take an end of a log that its own recovery does not find",
        "engine/remote/restoring.py::Restoring._recover",
        "if report.cut or (has_records and recovered.committed_seq != tail.committed):",
        "if False:",
        RESTORING,
    ),
    Mutant(
        "take objects of another lineage",
        "engine/remote/snapshot.py::_pages",
        "if page.lineage != head.lineage:",
        "if False:",
        f"{RESTORING} {VERIFYING}",
    ),
    Mutant(
        "take a copy of the state that is later than the version that was asked for",
        "engine/remote/stored_state.py::state_changes",
        "if any(_digest(entry.value) in later.get(entry.key, ()) for entry in entries):",
        "if False:",
        SNAPSHOT,
    ),
    Mutant(
        "apply changes of the state that the copy has already",
        "engine/remote/snapshot.py::Snapshot._since_copy",
        "if ref.name.version > copied",
        "if ref.name.version >= 0",
        f"{RESTORING} {SNAPSHOT}",
    ),
    Mutant(
        "end a verification at the first damaged object",
        "engine/remote/verifying.py::Verifier._contained",
        "self._tell(problem)",
        "raise",
        VERIFYING,
    ),
    Mutant(
        "call numbers missing that a primary before has lost, or not",
        "engine/remote/verifying.py::_are_lost",
        "first = max(first, end + 1)",
        "first = last + 1",
        VERIFYING,
    ),
    Mutant(
        "believe a list of the store that is behind",
        "engine/remote/verifying.py::Verifier._describe",
        "found = self._objects.patiently(lambda: self._objects.store.describe(wanted.name))",
        "raise Absent(wanted.name)",
        VERIFYING,
    ),
    Mutant(
        "let a pin end while its reader reads",
        "engine/remote/pinning.py::PinKeeper.beat",
        "self._renew()",
        "pass",
        SNAPSHOT,
    ),
    Mutant(
        "call a hole below the start of a log damage",
        "engine/remote/cutting.py::Assembly.end",
        "if segment in tails or self._lasts[segment] >= self._catalog.starts.get(segment[0], 0):",
        "if True:",
        CUTTING,
    ),
    Mutant(
        "leave a hole in a segment that is needed",
        "engine/remote/cutting.py::Assembly.end",
        "if segment in tails or self._lasts[segment] >= self._catalog.starts.get(segment[0], 0):",
        "if False:",
        CUTTING,
    ),
    Mutant(
        "go on right behind what is stored where the head names no bound",
        "engine/remote/restoring.py::Restoring._make_partitions",
        "self._snapshot.head.ahead or UNKNOWN_AHEAD",
        "self._snapshot.head.ahead",
        RESTORING,
    ),
    Mutant(
        "refuse a log whose state is older than its records",
        "engine/remote/restoring.py::Restoring._check_header",
        "self._numbers.setdefault(key, header.number)",
        "pass",
        RESTORING,
    ),
    Mutant(
        "let who interrupts a restore wait for its patience",
        "engine/remote/objects.py::Objects.patiently",
        "if self._ended.is_set():",
        "if False:",
        SNAPSHOT,
    ),
)

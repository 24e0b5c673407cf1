"""Defects in files, formats, state and segments with their recovery; see `tests.mutants`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE_TRANSACTIONS = "tests/unit/engine/commit/test_engine_transactions.py"
EVERY_BIT = "tests/crash/test_every_bit.py"
EVERY_CALL = "tests/crash/test_every_call.py"
FAULTS = "tests/crash/test_faults.py"
FILES = "tests/unit/engine/files/test_files.py"
HOUSEKEEPING = "tests/unit/engine/partitions/test_housekeeping.py"
PAGE_CACHE = "tests/crash/test_page_cache.py"
POWER_CUT = "tests/crash/test_power_cut.py"
RECOVERY = "tests/unit/engine/segments/test_recovery.py"
RECOVERY_DAMAGE = "tests/unit/engine/segments/test_recovery_damage.py"
RECOVERY_FILES = "tests/unit/engine/segments/test_recovery_files.py"
REMOVAL = "tests/unit/engine/partitions/test_removal.py"
REPAIR = "tests/unit/engine/test_repair.py"
STATE = "tests/unit/engine/state/test_state.py"
SHARES = "tests/unit/netserver/test_shares.py"

MUTANTS = (
    Mutant(
        "believe a sync though the file system is read-only right after it",
        "engine/commit/round_steps.py::RoundSteps.written",
        "if failed_at == DONE and mark_code == errno.EROFS:",
        "if False:",
        HOUSEKEEPING,
    ),
    Mutant(
        "answer a round while answers of the one before wait",
        "engine/state/store.py::LmdbState._answered",
        "self._unanswered.extend((submission, error) for submission in batch)",
        "self._unanswered.extendleft((submission, error) for submission in reversed(batch))",
        STATE,
    ),
    Mutant(
        "do not sync a new file before its name is changed",
        "engine/files/system.py::take_from_aside",
        "files.sync_data(fd)",
        "pass",
        f"{FILES} {FAULTS}",
    ),
    Mutant(
        "acknowledge into a removed file",
        "engine/files/system.py::SystemFiles.sync_data",
        "if not os.fstat(fd).st_nlink:",
        "if False:",
        FILES,
    ),
    Mutant(
        "take a file that cannot be looked at for one that is gone",
        "engine/files/system.py::found_at",
        "except (FileNotFoundError, NotADirectoryError):",
        "except OSError:",
        FILES,
    ),
    Mutant(
        "give up when descriptors are used up",
        "engine/files/system.py::SystemFiles._with_descriptor",
        "self.relieve is None or not self.relieve():",
        "True:",
        FILES,
    ),
    Mutant(
        "write once, however much of it was taken",
        "engine/files/system.py::SystemFiles._write_group",
        "while left:",
        "if left:",
        FILES,
    ),
    Mutant(
        "replace what was set aside before",
        "engine/files/system.py::free_path",
        "return path.with_name(name)",
        "return path",
        f"{RECOVERY_FILES} {FILES}",
    ),
    Mutant(
        "wait for a pipe in the place of a file",
        "engine/files/system.py::SystemFiles.open",
        "| os.O_NONBLOCK",
        "",
        "tests/unit/engine/files/test_owners.py -k pipe --timeout 20",
    ),
    Mutant(
        "end damage at a header whose batch is damaged, too",
        "engine/formats/batch_header.py::check_body",
        "return int(xxhash.xxh3_64_intdigest(body, segment_id)) == header.body_hash",
        "return True",
        "tests/unit/engine/segments/test_damage.py tests/unit/engine/formats/test_batch_reading.py",
    ),
    Mutant(
        "skip the checksum of headers",
        "engine/formats/batch_header.py::read_header",
        "(segment_id + file_position) & SEED_MASK) != own_hash",
        "segment_id) == 0",
        f"{EVERY_BIT} -k checksum",
        pure=True,
    ),
    Mutant(
        "skip the checksum of bodies",
        "engine/formats/batch_pure.py::verify",
        "!= hashes[1]",
        "== 0",
        f"{EVERY_BIT} -k checksum",
        pure=True,
    ),
    Mutant(
        "do not sync the header of a new segment",
        "engine/segments/active.py::sync_segment",
        "files.sync_data(fd)",
        "pass",
        f"{FAULTS} {POWER_CUT} {EVERY_CALL}",
        seeds=800,
    ),
    Mutant(
        "do not sync the directory of a new segment",
        "engine/segments/active.py::sync_segment",
        "files.sync_dir(segment.directory)",
        "pass",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "call everything durable that was written",
        "engine/segments/active.py::ActiveSegment.seal_at_tail",
        "self.durable_position",
        "1 << 40",
        f"{RECOVERY} {POWER_CUT}",
    ),
    Mutant(
        "sync again after a failed sync",
        "engine/segments/active.py::ActiveSegment._sync",
        "self.sync_failed = True",
        "pass",
        f"{FAULTS} tests/unit/engine/commit/test_rolling.py tests/unit/engine/partitions/test_housekeeping.py",
    ),
    Mutant(
        "sync a file beside another sync of it",
        "engine/commit/round_steps.py::RoundSteps.prepare",
        "if is_synced:",
        "if False:",
        "tests/unit/engine/commit/test_sync_races.py",
    ),
    Mutant(
        "leave what a failed round wrote",
        "engine/segments/active.py::ActiveSegment.cut",
        "files.truncate(fd, self.position)",
        "pass",
        FAULTS,
    ),
    Mutant(
        "take the last round of a publish for all of them",
        "engine/segments/batches.py::outcome",
        "failed = next((write_batch for write_batch in write_batches if write_batch.state == FAILED), None)",
        "failed = write_batches[-1] if write_batches[-1].state == FAILED else None",
        "tests/unit/engine/partitions/test_partition.py -k earlier_round",
    ),
    Mutant(
        "leave the records of a transaction where they were numbered",
        "engine/segments/batches.py::WriteBatch.renumber",
        "renumber(self.buffer, self.end, behind_seq, append_time_ms)",
        "pass",
        f"{ENGINE_TRANSACTIONS} -k published_meanwhile",
    ),
    Mutant(
        "lose a segment with its header",
        "engine/segments/discovery.py::_header",
        "if rebuilt is None:",
        "if True:",
        RECOVERY_DAMAGE,
    ),
    Mutant(
        "take numbers left out before the first segment for records",
        "engine/segments/recovery.py::Recovered.gaps",
        "max(follows, header.left_out_from) or header.first_seq",
        "follows or header.first_seq",
        "tests/unit/engine/cursors/test_lags.py -k before_the_first",
    ),
    Mutant(
        "count a gap twice that is told twice",
        "engine/segments/missing_numbers.py::Gaps.add",
        "max(first, self._lasts[-1] + 1)",
        "first",
        "tests/property/test_missing_numbers.py -k twice",
    ),
    Mutant(
        "take numbers for records that damage took",
        "engine/segments/missing_numbers.py::Gaps.most",
        "return sum([self.count(first, last).most for first, last in ranges])",
        "return sum([last - first + 1 for first, last in ranges])",
        "tests/unit/engine/segments/test_lost_counts.py -k told_records",
    ),
    Mutant(
        "rewrite nothing above the floor",
        "engine/segments/recovery.py::_Recovery._recover_active",
        "if end > floor:",
        "if False:",
        PAGE_CACHE,
    ),
    Mutant(
        "trust a footer that may not be on disk",
        "engine/segments/recovery.py::_Recovery.run",
        "self._make_sure_of(sealed[-1])",
        "pass",
        PAGE_CACHE,
    ),
    Mutant(
        "trust the header of a segment that a killed process has begun",
        "engine/segments/recovery.py::_Recovery._recover_active",
        "or is_new",
        "",
        f"{RECOVERY_FILES} -k killed_process",
    ),
    Mutant(
        "do not sync the directory that a killed process changed",
        "engine/segments/recovery.py::_Recovery.run",
        "self.files.sync_dir(self.location.directory)",
        "pass",
        EVERY_CALL,
    ),
    Mutant(
        "throw away what is cut off",
        "engine/segments/recovery.py::_Recovery._set_aside",
        "files.write(copy, [read(position, min(SCAN_BYTES, end - position))], position - start)",
        "pass",
        RECOVERY,
    ),
    Mutant(
        "cut off damaged records at the end",
        "engine/segments/recovery.py::_Recovery._recover_active",
        "if valid_end < floor:",
        "if False:",
        RECOVERY_DAMAGE,
    ),
    Mutant(
        "give numbers again that the watermark knows",
        "engine/segments/recovery.py::_Recovery._result",
        "self.hints.highest_seq, self.seen_seq",
        "self.seen_seq",
        RECOVERY_DAMAGE,
    ),
    Mutant(
        "give numbers again that were set aside",
        "engine/segments/recovery.py::_Recovery._recover_active",
        "self.seen_seq = highest",
        "pass",
        RECOVERY_DAMAGE,
    ),
    Mutant(
        "keep a part of a transaction",
        "engine/segments/recovery.py::_Recovery._count",
        "not self.hints.is_committed(header.transaction_id)",
        "False",
        f"tests/unit/engine/partitions/test_races.py {POWER_CUT}",
    ),
    Mutant(
        "pass over a segment that is missing",
        "engine/segments/recovery.py::_Recovery.run",
        "self._hold_place_of_missing(found)",
        "pass",
        RECOVERY_FILES,
    ),
    Mutant(
        "take an empty segment for the end of what was committed",
        "engine/segments/recovery.py::_Recovery._result",
        " if segment.first_seq <= segment.last_seq",
        "",
        f"{RECOVERY_FILES} -k power_cut_took",
    ),
    Mutant(
        "take the watermark of an empty segment for records before it",
        "engine/segments/recovery.py::_Recovery._acknowledged",
        "seq = header.begins - 1",
        "pass",
        f"{RECOVERY_FILES} -k power_cut_took",
    ),
    Mutant(
        "go on in a segment that a failed roll left",
        "engine/segments/recovery.py::_Recovery.run",
        "self._drop_unused(found)",
        "pass",
        RECOVERY_FILES,
    ),
    Mutant(
        "give numbers below the start of the log",
        "engine/segments/recovery.py::_Recovery._result",
        "self.seen_seq, below_start",
        "self.seen_seq",
        f"{ENGINE_TRANSACTIONS} -k number_of_their_own",
    ),
    Mutant(
        "miss a segment that is gone from between two others",
        "engine/segments/recovery.py::_Recovery.run",
        "self._hold_place_before(header, sealed)",
        "pass",
        f"{REPAIR} -k gone_from_the_middle",
    ),
    Mutant(
        "hold the place of segments that retention has removed",
        "engine/segments/recovery.py::_Recovery._hold_place_before",
        "max(sealed[-1].last_seq + 1, log_start) if sealed else header.begins",
        "sealed[-1].last_seq + 1 if sealed else 1",
        f"{REMOVAL} {RECOVERY_FILES}",
    ),
    Mutant(
        "leave what stands behind a segment's footer",
        "engine/segments/recovery.py::_Recovery._open_sealed",
        "size_bytes = self._seal_again(fd, walked, size_bytes)",
        "pass",
        f"{REPAIR} -k behind_a_footer",
    ),
    Mutant(
        "stop at a sector that cannot be read",
        "engine/segments/damage.py::careful_read.read",
        "if note is not None:",
        "raise OSError(errno.EIO, path)\nif note is not None:",
        RECOVERY_DAMAGE,
    ),
    Mutant(
        "believe the sync of watermarks that follows a failed one",
        "engine/segments/watermarks.py::Watermarks.sync",
        "self._failed_syncs += 1",
        "pass",
        f"{REMOVAL} -k behind_a_failed",
    ),
    Mutant(
        "take the watermark of a former owner",
        "engine/segments/watermarks.py::Watermarks._seed",
        "owner.topic_id, owner.partition,",
        "0, 0,",
        "tests/unit/engine/state/test_state_lost.py tests/unit/engine/segments/test_watermarks.py",
    ),
    Mutant(
        "let one maker use up the room for topics",
        "engine/state/topic_catalog.py::Catalog._check_room",
        "self._shares.check(maker, partition_count, topics_left, partitions_left)",
        "pass",
        f"{SHARES} -k requests",
    ),
    Mutant(
        "let LMDB write wherever a link leads",
        "engine/state/environment.py::Environment.__init__",
        "_check_files(path)",
        "pass",
        "tests/crash/test_foreign_files.py -k lock.mdb",
    ),
    Mutant(
        "take a state that cannot be read for a defect",
        "engine/state/environment.py::Environment.read",
        'raise DataDirectoryError(f"cannot read {self.path}: {error}") from error',
        "raise",
        "tests/unit/netserver/admin/test_staged_commits.py -k cannot_be_written",
    ),
    Mutant(
        "never forget what a maker took",
        "engine/state/shares.py::Shares._of",
        "kept = 0.5 ** ((self._clock_s() - at) / MAKER_HALF_LIFE_S)",
        "kept = 1.0",
        f"{SHARES} -k with_time",
    ),
)

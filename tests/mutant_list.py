"""Defects that `tests.mutants` puts into a copy of the code, each with the tests that have to find it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: `new` instead of `old` in `file`; `tests` (arguments of pytest) must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    seeds: int = 0
    """Crashes of the power cut test, if that is to find it."""
    pure: bool = False
    """The tests run without the compiled modules."""


DAMAGE = "tests/unit/engine/segments/test_recovery_damage.py"
GONE = "tests/unit/engine/segments/test_recovery_files.py"
RECOVERY = "tests/unit/engine/segments/test_recovery.py"
RACES = "tests/unit/engine/partitions/test_races.py"
REMOVAL = "tests/unit/engine/partitions/test_removal.py"
HOUSEKEEPING = "tests/unit/engine/partitions/test_housekeeping.py"
ROLLING = "tests/unit/engine/commit/test_rolling.py"
EVERY_CALL = "tests/crash/test_every_call.py"
FAULTS = "tests/crash/test_faults.py"
POWER = "tests/crash/test_power_cut.py"
STATE = "tests/unit/engine/state/test_state_lost.py"
CLOCK = "tests/unit/engine/partitions/test_clock.py"
BACKUPS = "tests/crash/test_backups.py"
QUICK = "tests/unit/engine/commit/test_quick_rounds.py"
ADDRESSES = "tests/unit/tools/logtool/test_logtool_addresses.py"

MUTANTS = (
    Mutant(
        "go on with a batch from any file that was staged anew",
        "netserver/admin/staging.py",
        "        if content_hash(name) not in anew:\n",
        "        if not anew:\n",
        "tests/unit/netserver/admin/test_staging.py -k same_content",
    ),
    Mutant(
        "copy batches of a transaction that the copied state does not know",
        "tools/logtool/lib/copied_partition.py",
        "            if header.transaction_id and at >= durable and not self.is_committed(header.transaction_id):\n",
        "            if False:\n",
        f"{BACKUPS} -k transaction",
    ),
    Mutant(
        "keep what is left of a topic that was deleted while it was copied",
        "tools/logtool/lib/copying.py",
        "            self._take_out_deleted(topics)\n",
        "",
        f"{BACKUPS} -k deletion",
    ),
    Mutant(
        "do not sync the directory that a first staged file makes",
        "netserver/admin/staging.py",
        "        files.sync_dir(directory.parent)",
        "        pass",
        "tests/unit/netserver/admin/test_staging.py -k with_its_name",
    ),
    Mutant(
        "let one listener's certificate stop all of them",
        "netserver/app.py",
        "            except CertificateError as error:\n",
        "            except ZeroDivisionError as error:\n",
        "tests/unit/netserver/config/test_fujin_config.py -k damaged",
    ),
    # --- what is written and synced
    Mutant(
        "do not sync records",
        "engine/commit/committer.py",
        "        self._sync([part for part in parts if part.error is None and part.chunks and part.sync])\n",
        "        self._sync([])\n",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "take what failed in a round of several files as stored",
        "engine/commit/native_rounds.py",
        "            if failed_at != DONE:\n",
        "            if failed_at not in (DONE, SYNC):\n",
        f"{QUICK} -k several",
    ),
    Mutant(
        "forget a failed sync in a round of several files",
        "engine/commit/native_rounds.py",
        "active.sync_failed |= failed_at == SYNC",
        "active.sync_failed |= False",
        f"{QUICK} -k several",
    ),
    Mutant(
        "acknowledge before the sync",
        "engine/partitions/partition.py",
        '        return self.topic.config.durability == "always"\n',
        "        return False\n",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "do not sync the header of a new segment",
        "engine/segments/active.py",
        "            files.sync_data(fd)\n    files.sync_dir(segment.directory)\n",
        "            pass\n    files.sync_dir(segment.directory)\n",
        f"{FAULTS} {POWER} {EVERY_CALL}",
        seeds=800,
    ),
    Mutant(
        "do not sync the directory of a new segment",
        "engine/segments/active.py",
        "    files.sync_dir(segment.directory)\n",
        "",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "do not sync the directory of a new partition",
        "engine/partitions/creation.py",
        "        problems |= _problems([*changed], self._each([*changed], self._sync_dir))\n",
        "",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "do not sync the directory of topics",
        "engine/partitions/creation.py",
        '            self._log.files.sync_dir(self._log.data_dir / "topics")\n',
        "",
        f"{EVERY_CALL} -k lose",
    ),
    Mutant(
        "believe the sync of watermarks that follows a failed one",
        "engine/segments/watermarks.py",
        "                self._failed_syncs += 1\n",
        "",
        f"{REMOVAL} -k behind_a_failed",
    ),
    Mutant(
        "begin no new segment behind numbers that were left out",
        "engine/commit/committer.py",
        "                part.roll = part.roll or partition.leaves_out_numbers\n",
        "",
        "tests/unit/engine/segments/test_recovery_files.py -k reserved_for",
    ),
    Mutant(
        "forget what a segment follows",
        "engine/commit/committer.py",
        "follows=old.last_seq + 1",
        "follows=0",
        f"{REMOVAL} -k gap_before_the_oldest",
    ),
    Mutant(
        "do not sync what a killed process made first",
        "engine/log.py",
        "    if directory_id is not None:\n        files.sync_dir(data_dir)",
        "    if directory_id is not None:\n        pass",
        "tests/unit/engine/state/test_state_lost.py -k killed_process",
    ),
    Mutant(
        "do not sync a new file before its name is changed",
        "engine/files/system.py",
        "        try:\n            files.sync_data(fd)\n",
        "        try:\n            pass\n",
        f"tests/unit/engine/files/test_files.py {FAULTS}",
    ),
    Mutant(
        "write the marker of a transaction after its answer",
        "engine/commit/committer.py",
        "        log.markers.commit(transaction.id, done, transaction.also)\n",
        "        log.markers.commit(transaction.id, lambda _: None, transaction.also)\n        done(None)\n",
        f"{RACES} -k unknown_outcome --timeout 20",
    ),
    Mutant(
        "count on with the epochs of transactions",
        "engine/commit/transactions.py",
        "            self._epoch = secrets.randbits(32)\n",
        "            self._epoch += 1\n",
        STATE,
    ),
    Mutant(
        "write no watermark",
        "engine/commit/committer.py",
        "            self._log.watermarks.write(owner, mark)\n",
        "            pass\n",
        f"{RACES} {DAMAGE}",
    ),
    Mutant(
        "call everything durable that was written",
        "engine/segments/active.py",
        "                position,\n                self.durable_position,\n",
        "                position,\n                1 << 40,\n",
        f"{RECOVERY} {POWER}",
    ),
    # --- failures
    Mutant(
        "sync again after a failed sync",
        "engine/segments/active.py",
        "            self.sync_failed = True\n            raise\n",
        "            raise\n",
        f"{FAULTS} {ROLLING} {HOUSEKEEPING}",
    ),
    Mutant(
        "sync a file beside another sync of it",
        "engine/segments/active.py",
        "        with self.sync_lock:\n            self._sync_all",
        "        if True:\n            self._sync_all",
        "tests/unit/engine/commit/test_sync_races.py",
    ),
    Mutant(
        "acknowledge into a removed file",
        "engine/files/system.py",
        "        if not os.fstat(fd).st_nlink:",
        "        if False:",
        "tests/unit/engine/files/test_files.py",
    ),
    Mutant(
        "write behind what could not be taken back",
        "engine/commit/committer.py",
        "            part.active.cut(log.files, log.handles)  # what",
        "            log.files  # what",
        "tests/unit/engine/commit/test_rolling.py",
    ),
    Mutant(
        "take a file that cannot be looked at for one that is gone",
        "engine/files/system.py",
        "    except (FileNotFoundError, NotADirectoryError):\n        return None\n",
        "    except OSError:\n        return None\n",
        "tests/unit/engine/files/test_files.py",
    ),
    Mutant(
        "leave what a failed round wrote",
        "engine/segments/active.py",
        "            files.truncate(fd, self.position)\n",
        "",
        FAULTS,
    ),
    Mutant(
        "do not take durability back with a failed round",
        "engine/segments/active.py",
        "            self.durable_position = min(self.durable_position, self.position)\n",
        "",
        DAMAGE,
    ),
    Mutant(
        "take a full disk for a failed one",
        "engine/commit/committer.py",
        "        elif problem.errno in NO_SPACE:\n",
        "        elif problem.errno == -1:\n",
        FAULTS,
    ),
    Mutant(
        "give up when descriptors are used up",
        "engine/files/system.py",
        "self.relieve is None or not self.relieve():",
        "True:",
        "tests/unit/engine/files/test_files.py",
    ),
    Mutant(
        "write once, however much of it was taken",
        "engine/files/system.py",
        "        while left:\n            written = os.pwritev",
        "        if left:\n            written = os.pwritev",
        "tests/unit/engine/files/test_files.py",
    ),
    Mutant(
        "let a transaction hold up what stands behind it",
        "engine/commit/committer.py",
        "                self.add(partition)\n        self._log.post(lambda: transaction.finish(error))\n",
        "                pass\n        self._log.post(lambda: transaction.finish(error))\n",
        f"{RACES} -k behind_it_hangs --timeout 10",
    ),
    # --- recovery
    Mutant(
        "rewrite nothing above the floor",
        "engine/segments/recovery.py",
        "            if end > floor:\n                self._write_again(fd, floor, end)\n",
        "",
        "tests/crash/test_page_cache.py",
    ),
    Mutant(
        "trust a footer that may not be on disk",
        "engine/segments/recovery.py",
        "            self._make_sure_of(sealed[-1])\n",
        "",
        "tests/crash/test_page_cache.py",
    ),
    Mutant(
        "trust the header of a segment that a killed process has begun",
        "engine/segments/recovery.py",
        "or end > floor or is_new:",
        "or end > floor:",
        "tests/unit/engine/segments/test_recovery_files.py -k killed_process",
    ),
    Mutant(
        "do not sync the directory that a killed process changed",
        "engine/segments/recovery.py",
        "            self.files.sync_dir(self.place.directory)\n        self._drop_unused(found)\n",
        "            pass\n        self._drop_unused(found)\n",
        EVERY_CALL,
    ),
    Mutant(
        "throw away what is cut off",
        "engine/segments/recovery.py",
        "                files.write(copy, [read(position, min(SCAN_BYTES, end - position))], position - start)\n",
        "                pass\n",
        RECOVERY,
    ),
    Mutant(
        "cut off damaged records at the end",
        "engine/segments/recovery.py",
        "            if valid_end < floor:\n",
        "            if False:\n",
        DAMAGE,
    ),
    Mutant(
        "give numbers again that the watermark knows",
        "engine/segments/recovery.py",
        "        next_seq = max(last_seq, self.known.highest_seq, self.seen_seq, below_start) + 1\n",
        "        next_seq = max(last_seq, self.seen_seq, below_start) + 1\n",
        DAMAGE,
    ),
    Mutant(
        "give numbers again that were set aside",
        "engine/segments/recovery.py",
        "                    self.seen_seq = highest\n",
        "                    pass\n",
        DAMAGE,
    ),
    Mutant(
        "keep a part of a transaction",
        "engine/segments/recovery.py",
        "is_torn = header.transaction_id != 0 and not self.known.is_committed(header.transaction_id)\n",
        "is_torn = False\n",
        f"{RACES} {POWER}",
    ),
    Mutant(
        "lose a segment with its header",
        "engine/segments/discovery.py",
        "            if rebuilt is None:\n",
        "            if True:\n",
        DAMAGE,
    ),
    Mutant(
        "pass over a segment that is missing",
        "engine/segments/recovery.py",
        "        self._hold_place_of_missing(found)\n",
        "",
        GONE,
    ),
    Mutant(
        "go on in a segment that a failed roll left",
        "engine/segments/recovery.py",
        "        self._drop_unused(found)\n        self._check_entry",
        "        self._check_entry",
        GONE,
    ),
    Mutant(
        "take the watermark of a former owner",
        "engine/segments/watermarks.py",
        "        packed = _OWNER.pack(self._directory_id, owner.topic_id, owner.partition, owner.number)\n",
        "        packed = _OWNER.pack(self._directory_id, 0, 0, owner.number)\n",
        f"{STATE} tests/unit/engine/segments/test_watermarks.py",
    ),
    Mutant(
        "replace what was set aside before",
        "engine/files/system.py",
        "    return path.with_name(name)\n",
        "    return path\n",
        f"{GONE} tests/unit/engine/files/test_files.py",
    ),
    Mutant(
        "stop at a sector that cannot be read",
        "engine/segments/scan.py",
        "            if problem.errno != errno.EIO:\n                raise\n        if note",
        "            raise\n        if note",
        DAMAGE,
    ),
    # --- the state
    Mutant(
        "give the id of an unknown directory to a new topic",
        "engine/log.py",
        "                self.catalog.keep_clear(topic_id)\n",
        "",
        STATE,
    ),
    Mutant(
        "go on where the files end when the reservation was lost",
        "engine/log.py",
        "seen_seq + LOST_RESERVATION\n",
        "0\n",
        STATE,
    ),
    Mutant(
        "give partitions new numbers when the state was lost",
        "engine/log.py",
        "            wanted = header.number\n",
        "            wanted = 0\n",
        STATE,
    ),
    Mutant(
        "overlook the files of a partition without a number",
        "engine/log.py",
        "                self._look_for_files(topic, index)\n",
        "                pass\n",
        STATE,
    ),
    Mutant(
        "say nothing of a lost state",
        "engine/log.py",
        "            self._look_for_state()\n",
        "            pass\n",
        STATE,
    ),
    # --- reading
    Mutant(
        "skip the checksum of bodies",
        "engine/formats/batch_pure.py",
        "        if xxh3_64_intdigest(view[position + HEADER_BYTES : behind], segment_id) != hashes[1]:\n",
        "        if False:\n",
        "tests/crash/test_every_bit.py -k checksum",
        pure=True,
    ),
    Mutant(
        "end damage at a header whose batch is damaged, too",
        "engine/formats/batch_header.py",
        "    return int(xxhash.xxh3_64_intdigest(body, segment_id)) == header.body_hash\n",
        "    return True\n",
        "tests/unit/engine/segments/test_scan.py tests/unit/engine/formats/test_batch_reading.py",
    ),
    Mutant(
        "skip the checksum of headers",
        "engine/formats/batch_header.py",
        "(segment_id + file_position) & SEED_MASK) != own_hash:\n",
        "segment_id) == 0:\n",
        "tests/crash/test_every_bit.py -k checksum",
        pure=True,
    ),
    Mutant(
        "do not tell readers what they lost",
        "engine/partitions/reads.py",
        "    return Slab(view, found.first_seq, found.last_seq, tuple(pair for pair in lost if pair[0] <= pair[1]))\n",
        "    return Slab(view, found.first_seq, found.last_seq, ())\n",
        DAMAGE,
    ),
    Mutant(
        "tell the operator of the same damage again and again",
        "engine/partitions/reads.py",
        "    partition.told_damage |= {key}\n",
        "",
        "tests/unit/engine/partitions/test_reading.py",
    ),
    Mutant(
        "pass over the oldest segments when the log begins in a gap",
        "engine/partitions/reads.py",
        "    if at < len(sealed):\n",
        "    if at < len(sealed) and seq >= sealed[0].first_seq:\n",
        f"{REMOVAL} -k gap",
    ),
    # --- retention, housekeeping, deletion
    Mutant(
        "remove files before the raised start is on disk",
        "engine/partitions/retention.py",
        "    log.watermarks.sync()  # the raised start is on disk before what lies below it goes\n",
        "",
        f"{REMOVAL} -k raised",
    ),
    Mutant(
        "remove files before the start is raised",
        "engine/partitions/housekeeping.py",
        "            elif partition.marked_log_start < grave.log_start or not marks.covers(partition.number):\n",
        "            elif False:\n",
        f"{REMOVAL} -k tells_where_the_log_begins_now",
    ),
    Mutant(
        "remove files at once",
        "engine/partitions/housekeeping.py",
        "            if grave.due_s > now:\n",
        "            if False:\n",
        f"{REMOVAL} -k below_the_start",
    ),
    Mutant(
        "forget files that a crash left below the start",
        "engine/partitions/partition.py",
        "        self._log.housekeeping.remove_later(self, result.sealed[:due])\n",
        "",
        f"{REMOVAL} -k below_the_start --timeout 10",
    ),
    Mutant(
        "leave closed partitions with files below their start alone",
        "engine/partitions/housekeeping.py",
        "        return mark is not None and mark.log_start > 1\n",
        "        return False\n",
        f"{REMOVAL} -k nobody_uses --timeout 10",
    ),
    Mutant(
        "forget what a failed removal was about",
        "engine/partitions/retention.py",
        "    log.files.sync_dir(directory)\n    log.index.remove(number, behind)\n",
        "    segments.clear()\n    log.files.sync_dir(directory)\n    log.index.remove(number, behind)\n",
        f"{REMOVAL} -k removal_failed --timeout 20",
    ),
    Mutant(
        "give numbers below the start of the log",
        "engine/segments/recovery.py",
        "self.seen_seq, below_start) + 1\n",
        "self.seen_seq) + 1\n",
        "tests/unit/engine/commit/test_engine_transactions.py -k number_of_their_own",
    ),
    Mutant(
        "look for records in an empty segment",
        "engine/partitions/reads.py",
        "    while at < len(sealed) and sealed[at].last_seq < max(seq, sealed[at].first_seq):\n",
        "    while at < len(sealed) and sealed[at].last_seq < seq:\n",
        f"{GONE} -k in_the_middle_is_no_loss",
    ),
    Mutant(
        "let one topic stop the cleaning of all",
        "engine/partitions/housekeeping.py",
        "                except Exception as problem:  # noqa: BLE001 - one topic must not stop the others\n",
        "                except ZeroDivisionError as problem:\n",
        f"{HOUSEKEEPING} -k poisoned",
    ),
    Mutant(
        "let the housekeeping thread die",
        "engine/partitions/housekeeping.py",
        "            except Exception as problem:  # noqa: BLE001 - this thread must not end before the log\n",
        "            except ZeroDivisionError as problem:\n",
        f"{HOUSEKEEPING} -k survives --timeout 10 -W ignore::pytest.PytestUnhandledThreadExceptionWarning",
    ),
    Mutant(
        "believe a jump of the clock that is seen twice",
        "engine/partitions/clock.py",
        "        elif steady_now_ms - self._doubted.since_ms >= self._doubt_ms:\n",
        "        else:\n",
        f"{CLOCK} -k taken_back",
    ),
    Mutant(
        "let a jump of the clock that is believed make things old",
        "engine/partitions/clock.py",
        "            self.leap_ms = steady_now_ms + offset_ms\n",
        "            self.leap_ms = 0\n",
        f"{CLOCK} -k nothing_older",
    ),
    Mutant(
        "count the time between two processes at once",
        "engine/partitions/clock.py",
        "self.held_ms = off_ms",
        "self.held_ms = 0",
        f"{CLOCK} -k between_two",
    ),
    Mutant(
        "sleep on when something is to be synced earlier",
        "engine/partitions/housekeeping.py",
        "                if now + interval_s < self._asleep_until_s:\n",
        "                if False:\n",
        f"{HOUSEKEEPING} -k sleeps_long --timeout 20",
    ),
    Mutant(
        "leave the system's time on staged files",
        "netserver/admin/staging.py",
        "        os.utime(self._directory / name, ns=(1_000_000 * self._server.log.now_ms(),) * 2)  # for its age\n",
        "",
        "tests/unit/netserver/admin/test_staging.py -k ahead",
    ),
    Mutant(
        "forget to sync what follows a roll",
        "engine/partitions/housekeeping.py",
        "            if entry is None or entry[2] is not active:",
        "            if entry is None:",
        f"{HOUSEKEEPING} -k behind_a_roll --timeout 10",
    ),
    Mutant(
        "open a partition whose topic was deleted meanwhile",
        "engine/partitions/partition.py",
        "            if self._phase != DELETED:\n                self._phase = CLOSED\n",
        "            if True:\n                self._phase = CLOSED\n",
        f"{RACES} -k while_it_is_opened",
    ),
    # --- repair
    Mutant(
        "let a plan change things",
        "engine/repair.py",
        "        dry = None if self.apply else DryFiles()\n",
        "        dry = None\n",
        "tests/unit/engine/test_repair.py",
    ),
    # --- callbacks, cursors, clients
    Mutant(
        "call nobody any more after one that fails",
        "engine/callbacks.py",
        "        except Exception:  # whatever it is, the next one has nothing to do with it\n",
        "        except ZeroDivisionError:\n",
        "tests/unit/engine/partitions/test_reading.py -k who_fails",
    ),
    Mutant(
        "stop all commits for a defect in one partition",
        "engine/commit/committer.py",
        "            self._give_outcome(part)\n",
        "            part.partition.round_done(part)\n",
        "tests/unit/engine/partitions/test_partition.py -k defect_behind_a_round",
    ),
    Mutant(
        "take the last round of a publish for all of them",
        "engine/segments/chunk.py",
        "    failed = next((chunk for chunk in chunks if chunk.state == FAILED), None)\n",
        "    failed = chunks[-1] if chunks[-1].state == FAILED else None\n",
        "tests/unit/engine/partitions/test_partition.py -k earlier_round",
    ),
    Mutant(
        "report records as unknown that were acknowledged",
        "netserver/client/base.py",
        "            self._trim()\n            self.window.fail(error)\n",
        "            self.window.fail(error)\n",
        "tests/unit/netserver/figg/test_figg_client.py -k of_many_is_not_unknown",
    ),
    Mutant(
        "know a key by its name",
        "netserver/access/auth.py",
        "if stored.identity.proof == identity.proof)",
        "if stored.identity.name == identity.name)",
        "tests/unit/netserver/access/test_auth.py -k known_by_itself",
    ),
    # --- slices
    Mutant(
        "parse all frames of a read in one turn",
        "netserver/shell/connection.py",
        "        if not slices.is_over():\n",
        "        if True:\n",
        "tests/unit/engine/test_slices.py -k frames",
    ),
    Mutant(
        "take as many messages in a bundle as it has room for",
        "netserver/tank/produce.py",
        "limit_bytes, BUNDLE_RECORDS_MAX)",
        "limit_bytes)",
        "tests/unit/netserver/tank/test_tank_large.py -k announces",
        pure=True,
    ),
    Mutant(
        "leave the records of a transaction where they were numbered",
        "engine/segments/chunk.py",
        "        renumber(self.buffer, self.end, behind_seq, append_time_ms)\n",
        "        pass\n",
        "tests/unit/engine/commit/test_engine_transactions.py -k published_meanwhile",
    ),
    # --- which log a command acts on
    Mutant(
        "believe a server.json that was left behind or copied",
        "tools/serving.py",
        "    if not is_in_use(data_dir):\n",
        "    if info is None:\n",
        f"{ADDRESSES} -k killed",
    ),
    Mutant(
        "believe whoever listens where a directory's server listened",
        "tools/serving.py",
        "    if _identity_at(info.admin, timeout_s) == identity_of(data_dir):\n",
        "    if _identity_at(info.admin, timeout_s):\n",
        f"{ADDRESSES} -k held_by_a_tool",
    ),
    Mutant(
        "carry out a request that means another directory",
        "netserver/admin/server.py",
        "        if request.headers.get(DIRECTORY_HEADER, self._directory) != self._directory:\n",
        "        if False:\n",
        f"{ADDRESSES} -k means_another_directory",
    ),
    Mutant(
        "publish to the default address when the named log does not listen",
        "tools/logtool/lib/address.py",
        "    if found is None and settings.server is None:\n",
        "    if found is None or found.server is None:\n",
        f"{ADDRESSES} -k stopped",
    ),
    Mutant(
        "signal a process of the server's number wherever that is",
        "tools/logtool/config.py",
        '    if not is_holder(pid, Path(status["data_dir"])):\n',
        "    if False:\n",
        f"{ADDRESSES} -k signals_no_process",
    ),
)

"""Defects in the commands, Spark's source and sink, and the public name; see `tests.mutants`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ADDRESSES = "tests/unit/tools/logtool/test_logtool_addresses.py"
BACKUPS = "tests/crash/test_backups.py"
LEFT_OUT = "tests/spark/test_left_out.py"
SIGNALS = "tests/crash/test_signals.py"
STREAM = "tests/spark/test_stream.py"
TABLE = "tests/spark/test_table.py"

MUTANTS = (
    Mutant(
        "let a signal hide the exit code of what is done",
        "quintlog.py::_run",
        "atexit.register(signals.ignore)",
        "pass",
        f"{SIGNALS} -k takes_itself_down",
    ),
    Mutant(
        "forget the signals that came while the server was loaded",
        "tools/engine_server.py::Process._serve",
        "for number in signals.KEPT.taken():",
        "for number in ():",
        f"{SIGNALS}::test_a_server_that_starts[SIGHUP]",
    ),
    Mutant(
        "let tail pass over what retention removed in silence",
        "tools/logtool/lib/record_sources.py::_Run._removed",
        "if log_start <= first_seq:",
        "if True:",
        "tests/unit/tools/logtool/test_logtool_commands.py -k in_front_of_it",
    ),
    Mutant(
        "publish to the default address when the named log does not listen",
        "tools/logtool/lib/address.py::listener_of",
        "found is None and settings.server is None",
        "found is None or found.server is None",
        f"{ADDRESSES} -k stopped",
    ),
    Mutant(
        "copy batches of a transaction that the copied state does not know",
        "tools/logtool/lib/copied_partition.py::PartitionCopy._unknown",
        "not self.is_committed(header.transaction_id)",
        "False",
        f"{BACKUPS} -k transaction",
    ),
    Mutant(
        "keep what is left of a topic that was deleted while it was copied",
        "tools/logtool/lib/backup_copy.py::Backup.run",
        "self._take_out_deleted(topics)",
        "pass",
        f"{BACKUPS} -k deletion",
    ),
    Mutant(
        "name no numbers of what verify finds at the end of a segment",
        "tools/logtool/verify.py::_is_told",
        'finding |= {"first": step.first_seq, "last": step.last_seq}',
        "return True",
        "tests/crash/test_damage_agrees.py",
    ),
    Mutant(
        "believe a server.json that was left behind or copied",
        "tools/serving.py::service_of",
        "if not is_in_use(data_dir):",
        "if info is None:",
        f"{ADDRESSES} -k killed",
    ),
    Mutant(
        "believe whoever listens where a directory's server listened",
        "tools/serving.py::service_of",
        "== identity_of(data_dir)",
        "",
        f"{ADDRESSES} -k held_by_a_tool",
    ),
    Mutant(
        "hand rows to whatever server listens where ours was",
        "tools/spark/sink/client.py::Client._connected",
        "if directory:",
        "if False:",
        "tests/spark/test_sink.py -k where_the_first_one_was",
    ),
    Mutant(
        "take the numbers below the first record for removed ones",
        "tools/spark/source/parts.py::Part._begins",
        "return segment.header.begins if is_left_out else self.border",
        "return self.border",
        f"{LEFT_OUT} -k number_of_its_own",
    ),
    Mutant(
        "take a difference of numbers for a count of records in Spark's triggers",
        "tools/spark/source/stream.py::StreamReader._waiting",
        "planner.partitions[key].count(first, number)",
        "number - first",
        f"{LEFT_OUT} -k few_records_over_many_numbers",
    ),
    Mutant(
        "go on at the old number in a topic that was made anew",
        "tools/spark/source/stream.py::StreamReader._begin",
        "if not given.is_of(key[0], part.topic.id):",
        "if False:",
        f"{STREAM} -k that_was_made_anew",
    ),
    Mutant(
        "read a batch of the old topic from the new one",
        "tools/spark/source/stream.py::StreamReader.partitions",
        "and until.is_of(key[0], part.topic.id)",
        "",
        f"{STREAM} -k that_was_made_anew",
    ),
    Mutant(
        "add rows to a Delta Lake table without noting how far they reach",
        "tools/spark/archive/table.py::Table.add",
        "CommitProperties(app_transactions=marks)",
        "CommitProperties()",
        f"{TABLE} -k what_is_new",
    ),
    Mutant(
        "go on from the newest state of a Delta Lake table, not from the one whose numbers were read",
        "tools/spark/archive/table.py::Table.add",
        "write_deltalake(self._table, rows,",
        "write_deltalake(self.uri, rows,",
        f"{TABLE} -k two_runs",
    ),
)

"""Further defects, in what copies, damage and strangers leave, and in signals; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

REPAIR = "tests/unit/engine/test_repair.py"
SIGNALS = "tests/crash/test_signals.py"

COPIES_MUTANTS = (
    Mutant(
        "give ids of subscriptions again in an older copy",
        "engine/cursors/store.py",
        "            self._next_id += secrets.randbelow(CURSOR_ID_LEAP)\n",
        "            pass\n",
        "tests/unit/engine/cursors/test_cursors.py -k not_given_again",
    ),
    Mutant(
        "set a cursor beyond the end to where the log has come since",
        "engine/cursors/cursor.py",
        "            end_seq = partition.found_seq ",
        "            end_seq = partition.last_seq ",
        "tests/unit/engine/cursors/test_cursors.py -k before_a_cursor_beyond",
        pure=True,
    ),
    Mutant(
        "compare a cursor with the end that was found each time it is loaded",
        "engine/cursors/store.py",
        "        cursor.check_end = cursor_id in self._unchecked\n",
        "        cursor.check_end = True\n",
        "tests/unit/engine/cursors/test_cursors.py -k before_a_cursor_beyond",
    ),
    Mutant(
        "let a stream wait behind a number that was never given",
        "netserver/reliably/topic_stream.py",
        "            if self.partition.is_open and after > self.partition.last_seq:",
        "            if False:",
        "tests/unit/netserver/reliably/test_reliably_topics.py -k newer_than_the_log --timeout 20",
    ),
    Mutant(
        "begin elsewhere than the application asked for without a word",
        "netserver/figg/subscriber.py",
        "            moved = self.is_attached or bool(self.tracked) ",
        "            moved = self.is_attached ",
        "tests/unit/netserver/figg/test_figg_client.py -k not_there_is_told",
    ),
    Mutant(
        "miss a segment that is gone from between two others",
        "engine/segments/recovery.py",
        "            self._hold_place_before(header, sealed)\n",
        "",
        f"{REPAIR} -k gone_from_the_middle",
    ),
    Mutant(
        "hold the place of segments that retention has removed",
        "engine/segments/recovery.py",
        "        first_seq = max(sealed[-1].last_seq + 1, log_start) if sealed else header.begins\n",
        "        first_seq = sealed[-1].last_seq + 1 if sealed else 1\n",
        "tests/unit/engine/partitions/test_removal.py tests/unit/engine/segments/test_recovery_files.py",
    ),
    Mutant(
        "leave what stands behind a segment's footer",
        "engine/segments/recovery.py",
        "                    size_bytes = self._seal_again(fd, walked, size_bytes)\n",
        "                    pass\n",
        f"{REPAIR} -k behind_a_footer",
    ),
    Mutant(
        "name no numbers of what verify finds at the end of a segment",
        "tools/logtool/verify.py",
        '        finding |= {"first": step.first_seq, "last": step.last_seq}\n',
        "        return True\n",
        "tests/crash/test_damage_agrees.py",
    ),
    Mutant(
        "wait for a pipe in the place of a file",
        "engine/files/system.py",
        "(os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK)",
        "os.O_RDWR if write else os.O_RDONLY)",
        "tests/unit/engine/files/test_owners.py -k pipe --timeout 20",
    ),
    Mutant(
        "let a signal hide the exit code of what is done",
        "quintlog.py",
        "        atexit.register(signals.ignore)  # the first is called last\n",
        "",
        f"{SIGNALS} -k takes_itself_down",
    ),
    Mutant(
        "forget the signals that came while the server was loaded",
        "tools/engine_server.py",
        "        for number in signals.KEPT.taken():\n",
        "        for number in ():\n",
        f"{SIGNALS}::test_a_server_that_starts[SIGHUP]",
    ),
    Mutant(
        "remove with a topic what is not ours",
        "engine/partitions/file_worker.py",
        "            if ours.fullmatch(name):\n",
        "            if True:\n",
        "tests/unit/engine/partitions/test_removal.py -k not_ours",
    ),
    Mutant(
        "follow a link in a partition's place",
        "engine/partitions/file_worker.py",
        "        if files.is_link(directory):\n            files.remove(directory)\n            return True\n",
        "",
        "tests/unit/engine/partitions/test_removal.py -k not_ours",
    ),
)

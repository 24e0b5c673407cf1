"""Further defects, in durable subscriptions, BlipMQ and counts of records; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

CURSOR_MUTANTS = (
    Mutant(
        "remove subscriptions by the system's clock",
        "engine/cursors/store.py",
        "self.log.clock.age_ms(entry.used_ms) > expiry_ms",
        '__import__("engine.partitions.clock", fromlist=["x"]).wall_ms() - entry.used_ms > expiry_ms',
        "tests/unit/engine/cursors/test_cursors.py -k wrong_clock",
    ),
    Mutant(
        "pass over messages by the system's clock",
        "netserver/blipmq/node.py",
        "self.log.clock.before_ms(self.message_ttl_ms)",
        "__import__('engine.partitions.clock', fromlist=['x']).wall_ms() - self.message_ttl_ms",
        "tests/unit/netserver/blipmq/test_blipmq_v2.py -k ahead",
    ),
    Mutant(
        "take in the journal of cursors at once",
        "engine/cursors/writer.py",
        "        count = fitting(found)\n",
        "        count = len(found)\n",
        "tests/unit/engine/cursors/test_cursors_stored.py -k does_not_stop_the_start",
    ),
    Mutant(
        "take numbers for records in a queue with a capacity",
        "engine/cursors/deliveries.py",
        "        if first > self.next_seq and gaps:\n",
        "        if False:\n",
        "tests/unit/engine/cursors/test_cursor_trouble.py -k counts_records",
        pure=True,
    ),
    Mutant(
        "cross numbers that are left out step by step",
        "engine/cursors/cursor.py",
        "            self.finished(plan, min(last, plan.last) if plan.retry else last)\n",
        "            self.finished(plan, min(last, plan.last))\n",
        "tests/unit/engine/cursors/test_cursor_trouble.py -k left_out --timeout 20",
        pure=True,
    ),
    Mutant(
        "drop dead letters for what passes",
        "engine/cursors/dead_letters.py",
        "                self._retry_ms[cursor] = now_ms + RETRY_MS\n            except Exception",
        "                self.forget(cursor)\n            except Exception",
        "tests/unit/engine/cursors/test_dead_letters.py -k wait_for_room",
    ),
    Mutant(
        "give tags to other records after a reset",
        "engine/cursors/cursor.py",
        "        self.base += after_seq + 1 - self.deliveries.next_seq\n",
        "        self.base = min(self.base, after_seq)\n",
        "tests/unit/engine/cursors/test_cursors.py -k names_another_record",
    ),
    Mutant(
        "miss topics that are made while a pattern's are looked for",
        "netserver/blipmq/session_v2.py",
        "        if not self._id:\n            self._found.setdefault(partition, after_seq)\n",
        "        if not self._id:\n            pass\n",
        "tests/unit/netserver/blipmq/test_blipmq_v2.py -k misses_nothing",
    ),
    Mutant(
        "count the deleted topics of a pattern for ever",
        "netserver/blipmq/push.py",
        "            del push.subscription.pushes[push.number]\n            self.count -= 1\n",
        "            del push.subscription.pushes[push.number]\n",
        "tests/unit/netserver/blipmq/test_blipmq_v2.py -k make_room",
    ),
    Mutant(
        "pass expired messages in one turn",
        "netserver/blipmq/push.py",
        "            self._is_late = used <= before and self._node.log.slices.is_over()\n",
        "",
        "tests/unit/netserver/blipmq/test_blipmq_v2.py -k passed_in_slices",
    ),
    Mutant(
        "take numbers for records that damage took",
        "engine/segments/gaps.py",
        "        return sum([self.count(first, last).most for first, last in ranges])\n",
        "        return sum([last - first + 1 for first, last in ranges])\n",
        "tests/unit/engine/segments/test_lost_counts.py -k told_records",
    ),
    Mutant(
        "take the records of a segment that is gone for numbers left out",
        "engine/reader.py",
        "max(follows, segment.header.left_out_from)",
        "follows",
        "tests/unit/engine/segments/test_lost_counts.py -k gone",
    ),
    Mutant(
        "take numbers for records in a position",
        "engine/reader.py",
        "        first = gaps.newest(self.log_start, self.committed_seq, count)\n",
        "        return self.committed_seq + 1 - count\n",
        "tests/unit/engine/segments/test_lost_counts.py -k positions",
    ),
    Mutant(
        "let tail pass over what retention removed in silence",
        "tools/logtool/cat.py",
        "        if log_start > self.next_seq:\n",
        "        if False:\n",
        "tests/unit/tools/logtool/test_logtool_commands.py -k in_front_of_it",
    ),
)

"""Further defects, in what Spark reads and writes; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

LEFT_OUT = "tests/spark/test_left_out.py"

SPARK_MUTANTS = (
    Mutant(
        "take a difference of numbers for a count of records in Spark's triggers",
        "tools/spark/source/stream.py",
        "planner.partitions[key].count(first, number)",
        "number - first",
        f"{LEFT_OUT} -k few_records_over_many_numbers",
    ),
    Mutant(
        "take the numbers below the first record for removed ones",
        "tools/spark/source/parts.py",
        "        return segment.header.begins if is_left_out else self.border\n",
        "        return self.border\n",
        f"{LEFT_OUT} -k number_of_its_own",
    ),
    Mutant(
        "go on at the old number in a topic that was made anew",
        "tools/spark/source/stream.py",
        "            if not given.is_of(key[0], part.topic.id):\n",
        "            if False:\n",
        "tests/spark/test_stream.py -k that_was_made_anew",
    ),
    Mutant(
        "read a batch of the old topic from the new one",
        "tools/spark/source/stream.py",
        "            if part is not None and until.is_of(key[0], part.topic.id):\n",
        "            if part is not None:\n",
        "tests/spark/test_stream.py -k that_was_made_anew",
    ),
    Mutant(
        "hand rows to whatever server listens where ours was",
        "tools/spark/sink/client.py",
        "            if directory:\n",
        "            if False:\n",
        "tests/spark/test_sink.py -k where_the_first_one_was",
    ),
)

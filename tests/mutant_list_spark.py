"""Further defects, in what Spark reads and writes; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

LEFT_OUT = "tests/spark/test_left_out.py"

SPARK_MUTANTS = (
    Mutant(
        "take a difference of numbers for a count of records in Spark's triggers",
        "tools/spark/stream.py",
        "parts[key].count(starts[key], end[key])",
        "end[key] - starts[key]",
        f"{LEFT_OUT} -k sizes_are_in_records",
    ),
    Mutant(
        "take the numbers below the first record for removed ones",
        "tools/spark/parts.py",
        "        return segment.header.begins if is_left_out else self.border\n",
        "        return self.border\n",
        f"{LEFT_OUT} -k number_of_its_own",
    ),
)

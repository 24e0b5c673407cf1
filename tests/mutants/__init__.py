"""Named defects: each is put into a copy of the code, and the tests have to find it (design: D13).

::

    python -m tests.mutants              # all of them; exit code 1 when one is not found
    python -m tests.mutants NAME ...     # some
    python -m tests.mutants --list       # says where each is; exit code 1 when one is not about the code any more

A defect names the function that it is in and the least text that says what changes there, so that it costs nothing when
other code moves or is renamed. When its function or text is gone, that is an error.
"""

from __future__ import annotations

from tests.mutants import (
    engine_files,
    engine_partitions,
    engine_remote,
    kafka_transactions,
    netserver,
    netserver_http,
    tools,
)

ALL_MUTANTS = (
    *engine_files.MUTANTS,
    *engine_partitions.MUTANTS,
    *engine_remote.MUTANTS,
    *kafka_transactions.MUTANTS,
    *netserver.MUTANTS,
    *netserver_http.MUTANTS,
    *tools.MUTANTS,
)

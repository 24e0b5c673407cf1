"""Defects in Kafka's transactions."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

FILE: Final = "netserver/kafka/transactions.py"
TESTS: Final = "tests/unit/netserver/kafka/test_kafka_transactions.py"

MUTANTS: Final = (
    Mutant(
        "take an open transaction of Kafka's for one that goes on after a restart",
        f"{FILE}::Transactions.__init__",
        "if stored.is_open:",
        "if False:",
        f"{TESTS} -k lost_with_the_server",
    ),
    Mutant(
        "begin a transaction of Kafka's without saying so on disk",
        f"{FILE}::Transactions._begin",
        "is_open=True",
        "is_open=False",
        f"{TESTS} -k lost_with_the_server",
    ),
    Mutant(
        "forget what became of a committed transaction of Kafka's",
        f"{FILE}::Transactions._commit_packed",
        "_put(one.name, stored)",
        "_put(one.name, one.stored)",
        f"{TESTS} -k lost_with_the_server",
    ),
    Mutant(
        "take what a fenced producer of Kafka's sends",
        f"{FILE}::Transactions.get",
        "one.stored.epoch != epoch",
        "False",
        f"{TESTS} -k fences_the_one_before",
    ),
    Mutant(
        "let a transaction of Kafka's that took too long go on with its epoch",
        f"{FILE}::Transactions._fenced",
        "stored.epoch + 1",
        "stored.epoch",
        f"{TESTS} -k takes_too_long",
    ),
    Mutant(
        "take a batch of a transaction twice",
        f"{FILE}::Transactions.gather",
        "if sequence.has(records):\n            return",
        "pass",
        f"{TESTS} -k comes_again",
    ),
    Mutant(
        "commit a transaction of which something was refused",
        f"{FILE}::Transactions.end",
        "gathered.failed is not None or gathered.missing",
        "False",
        f"{TESTS} -k comes_again",
    ),
    Mutant(
        "put a batch of a transaction that another has overtaken behind it",
        "netserver/kafka/gathering.py::Gathered.take",
        "insert(0, records)",
        "append(records)",
        f"{TESTS} -k overtake",
    ),
    Mutant(
        "commit offsets of a group apart from the transaction",
        f"{FILE}::Transactions._commit_packed",
        "puts += more",
        "pass",
        f"{TESTS} -k all_after_it_also_after_a_restart",
    ),
    Mutant(
        "tell offsets while a transaction may change them",
        f"{FILE}::Transactions.has_offsets",
        "one.open is not None",
        "False",
        f"{TESTS} -k all_after_it",
    ),
    Mutant(
        "drop a transaction that a full disk has refused",
        f"{FILE}::Transactions._commit_packed",
        "if error is None:",
        "if True:",
        f"{TESTS} -k full_disk",
    ),
    Mutant(
        "leave the memory of an aborted transaction counted",
        f"{FILE}::Transactions._let_go",
        "self.size_bytes -= gathered.size_bytes",
        "pass",
        f"{TESTS} -k aborted_one",
    ),
    Mutant(
        "pack a large transaction of Kafka's in one step",
        "netserver/kafka/gathering.py::pack",
        "place + PACKED_RECORDS",
        "place + 10**9",
        f"{TESTS} -k short_steps",
    ),
)

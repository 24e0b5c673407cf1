"""Further defects, in the clients and the protocols over TCP; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

CLIENT_MUTANTS = (
    Mutant(
        "BlipMQ client: hold back what an answer is waited for behind",
        "netserver/blipmq/subscriber.py",
        "        if self._owner.is_full and not self._barriers:\n",
        "        if self._owner.is_full:\n",
        "tests/unit/test_clients_prefetch.py::test_each_message_is_acknowledged[blipmq-2-large]",
    ),
)

"""Further defects, in the clients and the protocols over TCP; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

GONE = "tests/unit/test_blipmq_gone.py"

CLIENT_MUTANTS = (
    Mutant(
        "forget who subscribed to a topic that was deleted",
        "netserver/blipmq/node.py",
        "        found = [*self.patterns.find(topic.name), *self.names.get(topic.name, ())] if",
        "        found = [*self.patterns.find(topic.name)] if",
        f"{GONE} -k again_goes_on",
    ),
    Mutant(
        "a group made anew takes acknowledgements of the old one",
        "netserver/blipmq/push.py",
        "Subscription(first=1)",
        "Subscription(first=0)",
        f"{GONE} -k again_goes_on",
    ),
    Mutant(
        "BlipMQ client: hold back what an answer is waited for behind",
        "netserver/blipmq/subscriber.py",
        "        if self._owner.is_full and not self._barriers:\n",
        "        if self._owner.is_full:\n",
        "tests/unit/test_clients_prefetch.py::test_each_message_is_acknowledged[blipmq-2-large]",
    ),
)

"""Further defects, in the clients and the protocols over TCP; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

GONE = "tests/unit/netserver/blipmq/test_blipmq_gone.py"

CLIENT_MUTANTS = (
    Mutant(
        "make all of Figg's new topics in one turn",
        "netserver/figg/session.py",
        "            if not self.connection.has_turn():",
        "            if False:",
        "tests/e2e/test_fairness.py -k new_topics_of_figg",
    ),
    Mutant(
        "close silent connections although there is room",
        "netserver/tank/node.py",
        "        if len(self._members) > SILENT_CONNECTIONS_MAX and self._is_crowded():\n",
        "        if len(self._members) > SILENT_CONNECTIONS_MAX:\n",
        "tests/unit/netserver/tank/test_tank_session.py -k while_there_is_room",
    ),
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
        "tests/unit/netserver/client/test_clients_prefetch.py::test_each_message_is_acknowledged[blipmq-2-large]",
    ),
)

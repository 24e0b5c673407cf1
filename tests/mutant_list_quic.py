"""Further defects, in QUIC and Fujin; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

HOSTILE = "tests/unit/netserver/quic/test_quic_hostile.py --timeout 60"
PREFETCH = "tests/unit/netserver/client/test_clients_prefetch.py"

QUIC_MUTANTS = (
    Mutant(
        "date certificates by the system's clock",
        "netserver/quic/certificates.py",
        "        .not_valid_before(VALID[0])\n",
        "        .not_valid_before(datetime.now(UTC))\n",
        "tests/unit/netserver/quic/test_certificates.py -k whatever_the_clock",
    ),
    Mutant(
        "keep every gap of a QUIC stream",
        "netserver/quic/core.py",
        "        if stream is not None and len(stream.receiver._ranges) >= QUIC_GAPS_MAX:\n            return False\n",
        "",
        f"{HOSTILE} -k gaps_in_a_stream",
    ),
    Mutant(
        "let an error in the timer of a connection out",
        "netserver/quic/peer.py",
        "    @fenced\n    def _time(self)",
        "    def _time(self)",
        "tests/unit/netserver/quic/test_quic_strangers.py -k given_up_alone",
    ),
    Mutant(
        "take acknowledgements of what was never sent",
        "netserver/quic/core.py",
        "        if buf.pull_uint_var() >= self._packet_number:\n",
        "        if buf.pull_uint_var() < 0:\n",
        "tests/unit/netserver/quic/test_quic_strangers.py -k never_sent",
    ),
    Mutant(
        "give an IPv6 host as many handshakes as it has addresses",
        "netserver/quic/datagrams.py",
        '    if ":" not in host:\n',
        "    if True:\n",
        "tests/unit/netserver/quic/test_quic_strangers.py -k gives_way",
    ),
    Mutant(
        "take a handshake of any length",
        "netserver/quic/core.py",
        "            if offset + size > QUIC_CRYPTO_BYTES_MAX:\n",
        "            if False:\n",
        f"{HOSTILE} -k handshake_is_short",
    ),
    Mutant(
        "carry out commands whose answers nobody reads",
        "netserver/fujin/session.py",
        "                if not stream.writable:\n",
        "                if False:\n",
        f"{HOSTILE} -k not_read",
    ),
    Mutant(
        "hold back what answers an acknowledgement",
        "netserver/fujin/subscriber.py",
        "self._stream.pause(self._queue.full and not self._acks)",
        "self._stream.pause(self._queue.full)",
        f"{PREFETCH}::test_each_message_is_acknowledged[fujin-push-manual-large]",
    ),
    Mutant(
        "push as soon as QUIC has acknowledged the answer to CONNECT",
        "netserver/fujin/reader.py",
        "READ_GRACE_S if self._kind == PUSH else 0.0)",
        "0.0)",
        "tests/unit/netserver/fujin/test_fujin_reader.py -k can_have_read_the_answer",
    ),
    Mutant(
        "answer as soon as QUIC has acknowledged STOP",
        "netserver/fujin/writer.py",
        "self._stream.release(STOPPING), ACKNOWLEDGED_S, READ_GRACE_S)",
        "self._stream.release(STOPPING), ACKNOWLEDGED_S)",
        "tests/unit/netserver/fujin/test_fujin_reader.py -k can_have_read_stop",
    ),
    Mutant(
        "be done with what is too large to be pushed",
        "netserver/fujin/groups.py",
        "        kept = self._large.count < LARGE_KEPT_MAX\n",
        "        kept = False\n",
        "tests/unit/netserver/fujin/test_fujin_reader.py -k too_large_to_be_pushed",
    ),
    Mutant(
        "let Fujin's readers hold what they were given before a reset",
        "netserver/fujin/groups.py",
        "            cursor.on_reset[self._reset] = None\n",
        "            pass\n",
        "tests/unit/netserver/fujin/test_fujin_reader.py -k before_a_reset",
    ),
)

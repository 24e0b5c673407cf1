"""Defects in the server, its protocols and their clients; see `tests.mutants`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BLIPMQ_GONE = "tests/unit/netserver/blipmq/test_blipmq_gone.py"
BLIPMQ_PATTERNS = "tests/unit/netserver/blipmq/test_blipmq_patterns.py"
BLIPMQ_V2 = "tests/unit/netserver/blipmq/test_blipmq_v2.py"
BLIPMQ_V2_CLIENT = "tests/unit/netserver/blipmq/test_blipmq_v2_client.py"
CERTIFICATES = "tests/unit/netserver/access/test_client_certificates.py"
CLIENTS_PREFETCH = "tests/unit/netserver/client/test_clients_prefetch.py"
FIGG_CLIENT = "tests/unit/netserver/figg/test_figg_client.py"
FILE_MODES = "tests/unit/netserver/access/test_file_modes.py"
FUJIN_GROUPS = "tests/unit/netserver/fujin/test_fujin_groups.py"
FUJIN_READER = "tests/unit/netserver/fujin/test_fujin_reader.py"
KAFKA_SESSION = "tests/unit/netserver/kafka/test_kafka_session.py"
QUIC_HOSTILE = "tests/unit/netserver/quic/test_quic_hostile.py"
QUIC_STRANGERS = "tests/unit/netserver/quic/test_quic_strangers.py"
QUOTAS = "tests/unit/netserver/access/test_quotas.py"

MUTANTS = (
    Mutant(
        "keep the log from the next server until the last peer is gone",
        "netserver/app.py::Server.drain",
        "            released()\n",
        "",
        "tests/unit/netserver/test_app.py -k waits_for_no_peer",
    ),
    Mutant(
        "drop the first packet of who dials while another server takes over",
        "netserver/quic/endpoint.py::QuicEndpoint._peer_of_long",
        "if not self._accepting and",
        "if self._accepting and",
        "tests/unit/netserver/quic/test_quic.py -k dials_too_late",
    ),
    Mutant(
        "unpack gzip without a bound",
        "netserver/kafka/compression.py::_gunzipped",
        "member.decompress(rest, bytes_max + 1 - len(out))",
        "member.decompress(rest)",
        "tests/unit/netserver/kafka/test_kafka_compression.py -k no_more_memory",
    ),
    Mutant(
        "count the rest of a batch from its beginning",
        "netserver/kafka/appending.py::_append",
        "producer.first_sequence + place & SEQUENCE_MASK",
        "producer.first_sequence",
        "tests/unit/netserver/kafka/test_kafka_sequences.py -k no_write_batch",
    ),
    Mutant(
        "take every certificate over QUIC",
        "netserver/quic/client_certificates.py::names_of",
        ".verify_certificate()",
        "",
        f"{CERTIFICATES} -k fujin",
    ),
    Mutant(
        "carry out a publish of TANK that waited for its partition while its right was taken back",
        "netserver/tank/session.py::TankSession._opened",
        "if not self.connection.closed:",
        "if True:",
        "tests/unit/netserver/access/test_revocation.py -k waits_for_its_partition",
    ),
    Mutant(
        "read a new connection at once, whatever its identity owes",
        "netserver/shell/pacing.py::Brakes.begin",
        "if meter is None:",
        "if True:",
        f"{QUOTAS} -k coming_again",
    ),
    Mutant(
        "make the directories above the data directory as the umask has it",
        "engine/files/system.py::make_directory",
        "above.mkdir(PARENT_MODE, exist_ok=True)",
        "above.mkdir(exist_ok=True)",
        f"{FILE_MODES} -k directories_above",
    ),
    Mutant(
        "let one listener's certificate stop all of them",
        "netserver/app.py::Server._listen",
        "except CertificateError as error:",
        "except ZeroDivisionError as error:",
        "tests/unit/netserver/config/test_fujin_config.py -k damaged",
    ),
    Mutant(
        "pass over messages by the system's clock",
        "netserver/blipmq/listener_state.py::ListenerState.oldest_ms",
        "self.log.clock.before_ms(self.message_ttl_ms)",
        "__import__('engine.state.clock', fromlist=['x']).wall_ms() - self.message_ttl_ms",
        f"{BLIPMQ_V2_CLIENT} -k ahead",
    ),
    Mutant(
        "forget who subscribed to a topic that was deleted",
        "netserver/blipmq/listener_state.py::ListenerState._topic_changed",
        ", *self.names.get(topic.name, ())",
        "",
        f"{BLIPMQ_GONE} -k again_goes_on",
    ),
    Mutant(
        "count the deleted topics of a pattern for ever",
        "netserver/blipmq/push.py::Pusher.drop",
        "self.count -= 1",
        "pass",
        f"{BLIPMQ_V2} -k make_room",
    ),
    Mutant(
        "pass expired messages in one turn",
        "netserver/blipmq/push.py::Pusher._some",
        "and self._shared.log.slices.is_over()",
        "and False",
        f"{BLIPMQ_V2} -k passed_in_slices",
    ),
    Mutant(
        "a group made anew takes acknowledgements of the old one",
        "netserver/blipmq/push.py::Pusher.push",
        "Subscription(first=1)",
        "Subscription(first=0)",
        f"{BLIPMQ_GONE} -k again_goes_on",
    ),
    Mutant(
        "miss topics that are made while a pattern's are looked for",
        "netserver/blipmq/session_v2.py::PatternSubscription.topic_made",
        "self._found.setdefault(partition, after_seq)",
        "pass",
        f"{BLIPMQ_PATTERNS} -k misses_nothing",
    ),
    Mutant(
        "BlipMQ client: hold back what an answer is waited for behind",
        "netserver/blipmq/subscriber.py::PushConnection.poll",
        "and not self._barriers",
        "",
        f"{CLIENTS_PREFETCH}::test_each_message_is_acknowledged[blipmq-2-large]",
    ),
    Mutant(
        "report records as unknown that were acknowledged",
        "netserver/client/base.py::ClientBase._finish",
        "self._trim()",
        "pass",
        f"{FIGG_CLIENT} -k of_many_is_not_unknown",
    ),
    Mutant(
        "send history by its bytes alone, whatever time it takes",
        "netserver/figg/session.py::FiggSession._deliver",
        "or (ready[0].is_costly and slices.is_over())",
        "",
        "tests/unit/netserver/figg/test_figg_session.py -k turns_that_have_time",
    ),
    Mutant(
        "make all of Figg's new topics in one turn",
        "netserver/figg/session.py::FiggSession._partition",
        "if not self.connection.has_turn():",
        "if False:",
        "tests/e2e/test_fairness.py -k new_topics_of_figg",
    ),
    Mutant(
        "dial again for ever where nothing is taken",
        "netserver/figg/client.py::Client._lost",
        "self._turned_away += 1",
        "pass",
        "tests/unit/netserver/figg/test_figg_refused.py -k ends_with_an_error",
    ),
    Mutant(
        "call refused what may be stored",
        "netserver/figg/client.py::Client._refusal",
        "oldest.first > self._maybe_stored",
        "True",
        "tests/unit/netserver/figg/test_figg_refused.py -k connection_that_broke",
    ),
    Mutant(
        "begin elsewhere than the application asked for without a word",
        "netserver/figg/subscriber.py::Subscription.attached",
        "or bool(self.tracked)",
        "",
        f"{FIGG_CLIENT} -k not_there_is_told",
    ),
    Mutant(
        "be done with what is too large to be pushed",
        "netserver/fujin/groups.py::Group._leave_out",
        "kept = self._large.count < LARGE_KEPT_MAX",
        "kept = False",
        f"{FUJIN_READER} -k too_large_to_be_pushed",
    ),
    Mutant(
        "let Fujin's readers hold what they were given before a reset",
        "netserver/fujin/groups.py::Group._use",
        "cursor.on_reset[self._reset] = None",
        "pass",
        f"{FUJIN_GROUPS} -k before_a_reset",
    ),
    Mutant(
        "push as soon as QUIC has acknowledged the answer to CONNECT",
        "netserver/fujin/reader.py::Reader._joined",
        "READ_GRACE_S if",
        "0.0 if",
        f"{FUJIN_READER} -k can_have_read_the_answer",
    ),
    Mutant(
        "carry out commands whose answers nobody reads",
        "netserver/fujin/session.py::FujinStream._parse",
        "if not stream.writable:",
        "if False:",
        f"{QUIC_HOSTILE} --timeout 60 -k not_read",
    ),
    Mutant(
        "hold back what answers an acknowledgement",
        "netserver/fujin/subscriber.py::Subscription._balance",
        "and not self._acks",
        "",
        f"{CLIENTS_PREFETCH}::test_each_message_is_acknowledged[fujin-push-manual-large]",
    ),
    Mutant(
        "answer as soon as QUIC has acknowledged STOP",
        "netserver/fujin/writer.py::Writer._say_stop",
        ", READ_GRACE_S",
        "",
        f"{FUJIN_READER} -k can_have_read_stop",
    ),
    Mutant(
        "date certificates by the system's clock",
        "netserver/quic/certificates.py::_self_signed",
        ".not_valid_before(VALID[0])",
        ".not_valid_before(datetime.now(UTC))",
        "tests/unit/netserver/quic/test_certificates.py -k whatever_the_clock",
    ),
    Mutant(
        "keep every gap of a QUIC stream",
        "netserver/quic/bounded.py::BoundedQuic._may_gap",
        ">= QUIC_GAPS_MAX",
        "< 0",
        f"{QUIC_HOSTILE} --timeout 60 -k gaps_in_a_stream",
    ),
    Mutant(
        "take acknowledgements of what was never sent",
        "netserver/quic/bounded.py::BoundedQuic._handle_ack_frame",
        ">= self._packet_number",
        "< 0",
        f"{QUIC_STRANGERS} -k never_sent",
    ),
    Mutant(
        "take a handshake of any length",
        "netserver/quic/bounded.py::BoundedQuic._handle_crypto_frame",
        "offset + size > QUIC_CRYPTO_BYTES_MAX",
        "False",
        f"{QUIC_HOSTILE} --timeout 60 -k handshake_is_short",
    ),
    Mutant(
        "give an IPv6 host as many handshakes as it has addresses",
        "netserver/quic/datagrams.py::network_of",
        'if ":" not in host:',
        "if True:",
        f"{QUIC_STRANGERS} -k gives_way",
    ),
    Mutant(
        "let an error in the timer of a connection out",
        "netserver/quic/peer.py::QuicPeer._time",
        "@fenced",
        "",
        f"{QUIC_STRANGERS} -k given_up_alone",
    ),
    Mutant(
        "let a stream wait behind a number that was never given",
        "netserver/reliably/topic_stream.py::TopicStream.put",
        "after > self.partition.last_seq",
        "False",
        "tests/unit/netserver/reliably/test_reliably_topics.py -k newer_than_the_log --timeout 20",
    ),
    Mutant(
        "parse all frames of a read in one turn",
        "netserver/shell/connection.py::Connection.has_turn",
        "if not slices.is_over():",
        "if True:",
        "tests/unit/engine/test_slices.py -k frames",
    ),
    Mutant(
        "have a Fetch wait on where its timer came early",
        "netserver/kafka/fetching.py::Fetching._expire",
        "self._is_over = True",
        "self._is_over = self.call.connection.loop.time() < 0",
        f"{KAFKA_SESSION} -k its_time --timeout 20",
    ),
    Mutant(
        "answer a request before the publishes that came before it",
        "netserver/kafka/session.py::KafkaSession._begin",
        "if len(self._outstanding):",
        "if False:",
        f"{KAFKA_SESSION} -k order_of_requests --timeout 20",
    ),
    Mutant(
        "let a Fetch take all that is asked for",
        "netserver/kafka/fetching.py::Fetching.__init__",
        'min(max(call.body["max_bytes"], 1), ANSWER_BYTES_MAX)',
        'max(call.body["max_bytes"], 1)',
        f"{KAFKA_SESSION} -k is_bounded --timeout 20",
    ),
    Mutant(
        "take commits of a generation that is not agreed upon",
        "netserver/kafka/coordinator.py::Group.may_commit",
        "if self.state == COMPLETING:",
        "if False:",
        "tests/unit/netserver/kafka/test_kafka_groups.py -k one_member",
    ),
    Mutant(
        "close silent connections although there is room",
        "netserver/tank/listener_state.py::SilentConnections.add",
        "and self._is_crowded()",
        "",
        "tests/unit/netserver/tank/test_tank_session.py -k while_there_is_room",
    ),
    Mutant(
        "answer all that wait for a deleted topic in one turn",
        "netserver/tank/waiting_bounds.py::WaitingRequests.expire",
        'self._slices.call_each("the end of a wait", (job.expire for job in jobs))',
        "[job.expire() for job in jobs]",
        "tests/unit/netserver/tank/test_tank_waiting_bounds.py -k in_turns",
    ),
    Mutant(
        "end all subscriptions of a connection in one turn",
        "netserver/figg/session.py::FiggSession._stop_all",
        'self.connection.services.log.slices.call_each("the end of a connection", leave)',
        "[one() for one in leave]",
        "tests/unit/netserver/figg/test_figg_session.py -k in_turns",
    ),
    Mutant(
        "put as much into an answer as a frame can hold",
        "netserver/tank/consume.py::Fetch._take",
        "job.size_bytes + cut.size_bytes > ANSWER_BYTES_MAX",
        "False",
        "tests/unit/netserver/tank/test_tank_session.py -k is_bounded",
    ),
    Mutant(
        "take as many messages in a bundle as it has room for",
        "netserver/tank/produce.py::_check",
        "limit_bytes, BUNDLE_RECORDS_MAX",
        "limit_bytes",
        "tests/unit/netserver/tank/test_tank_large.py -k announces",
        pure=True,
    ),
    Mutant(
        "keep a request that was refused",
        "netserver/tank/session.py::TankSession._taken",
        "del outcome",
        "pass",
        "tests/unit/netserver/test_circles.py",
    ),
    Mutant(
        "let the interpreter look at all objects",
        "netserver/shell/collection.py::Collection.begin",
        "gc.set_threshold(*COLLECT_YOUNG, NEVER)",
        "gc.set_threshold(*COLLECT_YOUNG, 2)",
        "tests/unit/netserver/shell/test_collection.py",
    ),
)

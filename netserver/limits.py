"""Limits of the network side that no peer can move, with reasons. Settings are in ``netserver.config.sections``."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

READ_BUFFER_BYTES: Final = 256 * KIB
"""One shared read buffer per event loop: about 2,100 frames of 100 bytes a call; larger ones gained nothing."""

READS_IN_A_ROW_MAX: Final = 8
"""Large reads of one connection in one turn of the loop, 2 MiB as in a commit round. The loop by itself reads on, up to
32 times, while reads fill the buffer, and everybody else waits."""

RELEASED_MAX: Final = 1000
"""Answers of one connection that are sent in one turn of the loop, some milliseconds of work: two topics by turns make
an answer of every 30 bytes, and a commit round sets 70,000 of them free."""

READ_SMALL_BYTES: Final = 16 * KIB
"""Read size while memory is short: 10,000 connections then overshoot by 160 MB at most, not by 2.5 GB."""

OWN_BUFFER_MIN_BYTES: Final = 64 * KIB
"""A frame with so much waiting gets a buffer of its own: below it, copying the rest in and out is cheaper."""

MAPPED_BUFFER_MIN_BYTES: Final = 4 * MIB
"""A frame with so much waiting gets its whole length of address space: to double a buffer of 128 MiB, the largest, is a
stall of 100 ms for everybody."""

FRAME_HEAD_BYTES: Final = 1 * KIB
"""Room for a frame's head beyond the session's largest frame; every protocol's fixed head is far below."""

UNCOUNTED_BYTES: Final = 4 * KIB
"""A waiting rest below this is not counted in the receive budget: 10,000 of them are 40 MB at most."""

MALLOC_MAPPED_BYTES: Final = 1 * MIB
"""Memory blocks from this size on are the system's again as soon as they are freed. By default that begins with 128
KiB: the buffers of each 256 KiB read and sent then cost 128 page faults, a third of the work for a reader of history.
"""

MALLOC_TOP_BYTES: Final = 32 * MIB
"""Freed memory above this at the end of the heap is given back to the system."""

OUTPUT_HIGH_BYTES: Final = 256 * KIB
"""Output above this asks the session to send nothing more by itself (DATA, pushes)."""

OUTPUT_STOP_BYTES: Final = 1 * MIB
"""Output above this stops the reading of requests: a peer that asks and never reads must not fill the memory."""

FRAME_STALL_S: Final = 60.0
"""A half-sent frame that gains no byte for so long is a dead or hostile peer."""

FRAME_STALL_SHORT_S: Final = 2.0
"""The same while other connections wait for receive memory, ..."""

FRAME_PROGRESS_BYTES: Final = 32 * KIB
"""... and then a frame must gain this much in that time (16 KB/s): trickling senders cannot hold the memory."""

CURSORS_TICK_S: Final = 0.1
"""Positions of subscriptions are written, and what nobody polls for falls due, this often."""

SWEEP_S: Final = 1.0
"""Interval of the look at half-sent frames."""

LINGER_S: Final = 2.0
"""After our FIN, so long may the peer take to send its own. Closing earlier with unread input would send a reset,
which can destroy answers on their way."""

DISCARD_BYTES: Final = 16 * MIB
"""Input thrown away after our FIN; a peer that sends more does not listen."""

FLUSH_S: Final = 10.0
"""A closed connection's output is given up after so long without being taken."""

ACCEPT_BATCH: Final = 64
"""Connections accepted in one turn of the loop: a burst of thousands must not stall the others."""

ACCEPT_RETRY_S: Final = 0.25
"""Pause of the listener when descriptors or memory ran out; an earlier close ends it at once."""

BACKLOG: Final = 4096
"""Connections that the kernel may hold for us (also while we are at the connection limit)."""

DESCRIPTORS_RESERVED: Final = 192
"""Descriptors kept free of client connections: LMDB, locks, watermarks, active segments, admin HTTP."""

DRAIN_S: Final = 2.5
"""After SIGTERM sessions have so long to finish; with the flush and the log's close the exit stays below 5 s."""

DRAIN_POLL_S: Final = 0.002
"""So often it is looked whether sessions have finished: a part of the shortest round."""

OPEN_FILES_LEAST: Final = 16
"""Open segment files below which the engine does not work well, however low the descriptor limit is."""

SHARE_MIN_BYTES: Final = 64 * KIB
"""The least share of pending publish bytes that a connection has, however many compete."""

KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 20
KEEPALIVE_PROBES: Final = 3
"""TCP keepalive: a subscriber whose machine vanished is noticed after two minutes."""

TLS_HANDSHAKE_S: Final = 10.0
"""A TLS handshake takes milliseconds; a peer that never finishes holds a connection for so long at most."""

LOG_PIECE_BYTES: Final = 256
"""Bytes of the log written at once to a terminal or socket that says it can take some: so many it always takes."""

DRAIN_REMOTE_S: Final = 1.0
"""Then what was appended has so long to get into object storage, if it gets there at all."""

DRAIN_LOG_S: Final = 1.5
"""After the connections are gone the disk has so long to take what was appended and is acknowledged to nobody."""

SWEEP_EVERYTHING_TICKS: Final = 10
"""Every so many sweeps all connections are looked at; 10,000 take about 3 ms."""

LOOP_LAG_INTERVAL_S: Final = 0.1
"""Interval of the measurement of how late the event loop runs its timers."""

SLOW_TURN_S: Final = 0.02
"""CPU time of one turn of the event loop that is counted as slow: everybody waits for it, beside a sync of some ms."""

SLOW_TURN_LOG_S: Final = 10.0
"""Time between two lines about slow turns."""

TURN_CLOCK_S: Final = 0.001
"""Turns of the loop within so much time are looked at together, and are known to be short."""

LONG_TURN_S: Final = 0.005
EXACT_S: Final = 1.0
"""Behind so much in one piece every turn is looked at by itself for so long."""

ADMIN_BODY_BYTES: Final = 32 * MIB
"""A request to the admin API: one record of the default limit (16 MiB) in base64 fits."""

ADMIN_REQUESTS_REMEMBERED: Final = 256
"""Paths and Host headers of which is kept what they mean: clients send the same ones again. Each has 8 KiB at most."""

ADMIN_JSON_AT_ONCE_BYTES: Final = 256 * KIB
"""A JSON body up to this size is decoded in the event loop: 6 ms when it consists of the smallest values; a larger one
on a thread."""

ADMIN_JSON_VALUES_MAX: Final = 100_000
"""Objects, lists, texts and numbers in a JSON body above that size: the event loop has to take them apart again."""

ADMIN_PROBLEMS_SHOWN: Final = 100
"""Partitions of each kind of problem that one answer names."""

ADMIN_PUBLISHES: Final = 4
"""Publishes of the admin API that may be under way at once; each holds a body of the size above in memory."""

STAGING_BYTES_MAX: Final = 64 << 30
"""Staged files of batches that wait for their commit; what is abandoned goes away after `STAGED_KEEP_S`."""

STAGED_KEEP_S: Final = 86_400.0
"""A staged file that no commit has named for so long is removed."""

STAGED_SWEEP_S: Final = 600.0
"""Time between two looks for abandoned staged files."""

STAGED_FULL_SWEEP_S: Final = 10.0
"""The same while staged files take all that they may: each look walks the batches of all writers."""

STAGED_AT_ONCE: Final = 4
"""Staged files that are received at once; each is in memory until it is on disk."""

STAGED_SLICE_ROWS: Final = 500
"""Rows of a commit handled in one turn of the event loop: about a millisecond."""

COMMIT_FILES_MAX: Final = 100_000
"""Staged files of one batch: their names are kept in one value of the state, up to 70 bytes each."""

WRITER_NAME_BYTES_MAX: Final = 1024
"""Name of a writer of batches."""

GLOB_CHARS_MAX: Final = 256
"""A pattern in a request to admin HTTP: compiling it takes 1 ms at most, and 8 KiB of memory. A name may be longer."""

ADMIN_KEEPALIVE_S: Final = 15.0
"""An idle connection to admin HTTP is closed after so long, one without a first request too."""

ADMIN_CONNECTIONS_MAX: Final = 96
"""Open connections to admin HTTP: they do not count with the others, and live off half of the descriptors reserved."""

ADMIN_CONNECTIONS_FULL: Final = 80
"""Open connections to admin HTTP from which on a new one takes the place of the one that has been idle for longest."""

ADMIN_REQUESTS_MAX: Final = 64
"""Requests to admin HTTP that are in work at once, of those who are let in: they may last, as followers do. A health
check and whoever logs in find a place beside them."""

ADMIN_REQUESTS_OPERATORS: Final = 8
"""Further ones of operators: so that somebody's key can be taken back who has all the others."""

ADMIN_ACCEPT_BATCH: Final = 8
"""Connections to admin HTTP accepted in one turn of the loop: each is answered before so many others come that it would
have to give way to them."""

ADMIN_SHUTDOWN_S: Final = 1.0
"""Requests to admin HTTP end in this time at a stop: half of it is for answers. Less when another server follows."""

UPKEEP_MAX: Final = 2
"""Verifications, backups and dumps of segments over HTTP at a time: each is a process that reads as fast as the disk
gives."""

UPKEEP_FIRST_S: Final = 5.0
"""So long an answer waits for the first line of such a process, which may say that it cannot be begun: its status says
so then. Commands wait 10 s for an answer."""

UPKEEP_READ_BYTES: Final = 64 * KIB
"""Of what such a process prints, at a time."""

UPKEEP_END_S: Final = 5.0
"""So long such a process has, when nobody waits for it any more, to remove what it has made."""

METRICS_TOPICS: Final = 1000
"""Topics with series of their own at /metrics/topics; the rest are summed as ``_other``."""

METRICS_GROUPS: Final = 1000
"""The same of groups: two series each, so that whoever makes a group for each client does not flood who scrapes."""

TEST_START_S: Final = 30.0
TEST_STOP_S: Final = 15.0
"""Patience of ``netserver.testing`` on a loaded machine; a stop takes 5 s at most."""

CONFIG_FILE_BYTES_MAX: Final = 1 * MIB
"""The configuration file: all settings take a few KiB, and a list of 10,000 API keys fits."""

KEY_FILE_BYTES_MAX: Final = 4 * MIB
"""About 15,000 API keys; each AUTH is hashed once for each salt of the file, 1 us each."""

API_KEY_CHARS_MIN: Final = 20
"""Keys are hashed fast: what a person makes up must be too long to be guessed."""

KEY_GLOBS_MAX: Final = 1000
"""Patterns in one list of an identity: a topic is compared with all of them once, 1 us each."""

RIGHTS_REMEMBERED_MAX: Final = 4096
"""Answers that an identity's rights are remembered for, 0.5 MiB of them with names of usual length."""

QUOTA_BURST_S: Final = 0.25
"""An identity with a rate may go beyond it by so much of it at once: clients send in bursts."""

QUOTA_WAIT_MAX_S: Final = 2.0
"""An HTTP request waits so long for the rate of its identity; when that is not enough it is refused, and told when."""

QUOTA_REFUSED_DELAY_MAX_S: Final = 2.0
"""The answer to a refusal for a quota is put off for up to so long, like that to a wrong key, when there were many."""

QUOTA_WAITING_MAX: Final = 8
"""HTTP requests of an identity that wait so at a time: each of them holds a connection of those that there are."""

ADDRESSES_REMEMBERED: Final = 1024
"""Addresses of peers that are not read again when the next connection comes from there."""

WRONG_KEYS_FREE: Final = 4
"""Wrong keys of an address, or tries of one wrong key, until the answer to the next one is put off."""

WRONG_KEY_DELAY_S: Final = 0.1
"""The first such delay; it doubles each time, ..."""

WRONG_KEY_DELAY_MAX_S: Final = 5.0
"""... up to this: 12 tries a minute for each connection, of 2^256 keys."""

WRONG_KEYS_ANSWERED_PER_S: Final = 400
"""Wrong keys of those whose answer is put off, of all of them together: at 50 to 85 us each 2 to 4 % of a CPU. ..."""

WRONG_KEYS_TURN_S: Final = 0.25
"""... A turn comes so often, for a hundred of them. ..."""

WRONG_KEYS_TURN_MAX_S: Final = 20.0
"""... Nobody waits longer for their turn: a connection that has shown no key is closed after 30 s, and one that comes
again costs more than an answer."""

WRONG_KEY_HALF_LIFE_S: Final = 10.0
"""Half of the failures are forgotten in this time: somebody who mistyped waits no longer than that."""

WRONG_KEYS_REMEMBERED_MAX: Final = 8192
"""Addresses and wrong keys whose failures are counted, 1 MiB; the longest unchanged ones are forgotten."""

REFUSED_LINGER_S: Final = 1.0
"""Whoever is not let in is closed so long after they have come, unread: clients redial a closed one without pause."""

AUDIT_LINES_PER_S: Final = 10
"""Lines of one kind that the audit gets in a second: a client that is refused tries again at once."""

AUDIT_KINDS_MAX: Final = 1024
"""Kinds of lines that are counted."""

AUDIT_NAME_CHARS_MAX: Final = 256
"""Of the name of a topic; it may have 65,535 bytes."""

STREAM_WINDOW_BYTES: Final = 256 * KIB
"""What a peer may send on a QUIC stream before its session has taken anything; a larger frame gets a window of its
size once memory is reserved."""

PEER_WINDOW_BYTES: Final = 1 * MIB
"""The same for all streams of a QUIC connection: bounds what gaps in the data can make us keep."""

SEND_AHEAD_BYTES: Final = 64 * KIB
"""Bytes given to a QUIC connection and not sent: about 45 packets, 2 ms of building them in one turn of the loop."""

SEND_SLICE_BYTES: Final = 16 * KIB
"""Bytes that one stream gives to its QUIC connection before the next one has its turn."""

PEER_OUTPUT_BYTES: Final = 4 * MIB
"""Output that waits on all streams of a QUIC connection; above it only those are asked for more of which none waits."""

QUIC_TURN_S: Final = 0.0001
"""Time that taking datagrams, and sending them, may have in one turn of the loop: what other protocols wait."""

QUIC_BATCH_S: Final = 0.0005
"""What came in so much time of taking datagrams is handled together: each handling costs as much as some datagrams."""

QUIC_PACING_S: Final = 0.002
"""What QUIC's sending rate allows in this time may leave at once: two ticks of the event loop's timers."""

QUIC_ACK_S: Final = 0.005
"""Packets are acknowledged after this time, or along with data: longer than most commit rounds take."""

QUIC_BULK_ACK_S: Final = 0.002
"""The same once ``QUIC_ACK_PACKETS`` wait for it: a peer that sends much is not to wait for room."""

QUIC_ACK_PACKETS: Final = 8
"""See ``QUIC_BULK_ACK_S``."""

QUIC_DATAGRAM_BYTES: Final = 1452
"""Largest UDP payload sent: what fits into an Ethernet frame behind IPv6 and UDP headers."""

QUIC_SOCKET_BYTES: Final = 4 * MIB
"""Size asked for the buffers of UDP sockets (the kernel may give less): a burst must not be lost in them."""

UDP_PAYLOAD_BYTES: Final = 65_507
"""Largest UDP payload over IPv4, also of datagrams that the kernel cuts or puts together."""

UDP_SEGMENTS: Final = 64
"""Datagrams that Linux cuts out of one call at most."""

QUIC_UNSENT_DATAGRAMS: Final = 4096
"""Datagrams kept while the socket takes none; beyond it they are dropped, which QUIC repairs."""

HALF_OPEN_RETRY: Final = 64
"""Unfinished QUIC handshakes above which a client must first show that its address is its own."""

HALF_OPEN_MAX: Final = 1024
"""Unfinished QUIC handshakes above which further ones are not begun; each takes about 100 KiB."""

HALF_OPEN_HOST_MAX: Final = 256
"""The same for one host, so that a single one cannot keep everybody else from connecting."""

QUIC_RESETS_MAX: Final = 64
"""Datagrams of unknown QUIC connections that are answered in a quarter of a second: a client sends several, and one
answer ends its connection; a flood gets no more."""

QUIC_UNANSWERED_MAX: Final = 512
"""First packets of connections that are kept for the next server while one hands over."""

QUIC_TICK_S: Final = 0.25
"""How often QUIC connections are looked at for pings and timeouts."""

QUIC_CLOSE_S: Final = 0.25
"""At the end of a drain the last packets may take so long to be acknowledged."""

SILENT_CLOSES_MAX: Final = 2
"""A client that was never answered ends when so many connections in a row were closed without an answer."""
RECOGNITION_S: Final = 1.0
"""How long a client that was not understood waits for an answer that tells what is really there."""

QUIC_CRYPTO_BYTES_MAX: Final = 16 * KIB
"""What a client may send in the handshake, at each level: its hello has about 300 bytes, 2 KiB with large keys."""

QUIC_GAPS_MAX: Final = 128
"""Pieces of a QUIC stream that are kept though something is missing before them; aioquic looks at all of them for each
frame. A window's packets, of which every second one is lost, are 110."""

QUIC_GAP_STREAMS_MAX: Final = 64
"""Streams of a QUIC connection that may have such pieces."""

QUIC_GAPS_BYTES_MAX: Final = 32 * MIB
"""Such pieces and the gaps before them on all connections together: a frame of one byte at the end of a window takes
room for the whole window. Above it what is out of order counts as lost."""

QUIC_SENT_MAX: Final = 4096
"""Sent packets that are remembered, beyond twice those on their way: acknowledgements are not always acknowledged."""

KAFKA_LAGS_MAX: Final = 100_000
"""Committed offsets of Kafka's groups whose lag is measured for metrics and trends: a million would take seconds."""

COLLECT_YOUNG: Final = 2000, 2
"""The interpreter looks for circles among new objects when there are so many more of them; after so many such looks,
also at those that were looked at once: 8,000, which takes 2 to 3 ms. Each object is looked at twice in all."""

COLLECT_TICK_S: Final = 10.0
"""Time between two looks at how much memory is in use: counting its blocks takes up to a millisecond."""

COLLECT_LATE_TIMES: Final = 3.0
COLLECT_LATE_BLOCKS: Final = 3_000_000
COLLECT_THING_BLOCKS: Final = 300
"""Small blocks of memory in use (about 100 bytes each), as a multiple of those after the last look at all objects,
beyond that, and for each topic, partition and connection (a topic of one partition takes 60), from which on all are
looked at: 300 MB that nothing explains."""

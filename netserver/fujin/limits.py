"""Limits of the Fujin protocol: every length and count that a peer can state, with its reason."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

DEFAULT_PORT: Final = 4848
"""UDP port of the original."""

NAME_BYTES_MAX: Final = 1024
"""Longest topic, reader or writer name in a command: what a topic of ours and the name of a cursor may have."""

WRITER_ID_BYTES_MAX: Final = 1024
"""Longest writer id: it is kept for the life of its stream."""

HEADERS_MAX: Final = 1024
"""Header strings of one message (with the option ``write_headers``); the field could say 65,535."""

HEADERS_BYTES_MAX: Final = 64 * KIB
"""Bytes of a message's header strings together: they are metadata, and the whole of them is kept beside the record."""

MESSAGE_ID_BYTES: Final = 12
"""Our message ids: partition (u32) and sequence number (u64)."""

ACK_IDS_MAX: Final = 16_384
"""Message ids in one ACK or NACK: as many as one reader group may have in flight."""

ACK_ID_BYTES_MAX: Final = 1024
"""Longest id taken in an ACK or NACK; one that is not of our length is answered by an error of its own."""

ACK_BYTES_MAX: Final = 1 * MIB
"""All ids of an ACK or NACK together with their lengths: they are kept until the answer, which repeats them."""

FETCH_RECORDS_MAX: Final = 16_384
"""Messages in one answer to FETCH, whatever it asks for: all of them may have to be acknowledged."""

FETCH_BYTES_MAX: Final = 1 * MIB
"""Bytes of messages gathered for one answer to FETCH; one larger message goes alone."""

LARGE_KEPT_MAX: Final = 1024
"""Records too large to be pushed that a group keeps for readers that pull; further ones are left out, so that a group
without such readers goes on."""

DELETED_REMEMBERED_MAX: Final = 10_000
"""Names of deleted topics that readers do not make again; the oldest are forgotten."""

FETCHES_MAX: Final = 64
"""FETCHes of one stream that may wait for messages; a further one is answered with none at once."""

PUSH_TURN_BYTES: Final = 16 * KIB
"""Bytes of messages dealt to one push stream before the next one of its group has its turn."""

TURN_RECORDS_MAX: Final = 1024
"""Messages framed in one call, so that small ones do not make a portion of many thousands."""

TURN_BYTES: Final = 64 * KIB
"""Bytes of messages that a reader group hands out in one turn of the event loop: about a millisecond of QUIC work."""

ANSWERS_BYTES_MAX: Final = 256 * KIB
"""Answers that may wait behind what is not stored yet; beyond it the stream is not parsed."""

RUNS_MAX: Final = 4096
"""Runs of WRITEs (those to one topic in one read) of a stream that may wait to be stored: each takes about 400 bytes,
however small its messages are."""

COMMANDS_TURN_MAX: Final = 256
"""Commands other than runs of WRITEs that a stream carries out in one turn of the loop, one or two milliseconds: a
window full of BEGIN and ROLLBACK is 50,000 of them."""

RUN_WRITES_MAX: Final = 16_384
"""WRITEs that one call of the compiled loop takes; it sizes the scratch buffer of their answers (6 bytes each)."""

ACKNOWLEDGED_S: Final = 5.0
"""The Go client drops what shares a read with the answer to CONNECT READER, or with STOP: what follows waits until the
client has acknowledged the packet, or for so long."""

READ_GRACE_S: Final = 0.25
"""And so much longer, since its QUIC acknowledges a packet before the goroutine that reads the stream has its turn."""

TRANSACTIONS_BYTES_MAX: Final = 256 * MIB
"""Bytes in the open transactions of all streams together: one may hold 64 MiB, and nothing else bounds their number."""

TOPICS_REMEMBERED_MAX: Final = 1024
"""Topics that one writer's stream finds without asking."""

READ_MESSAGE_BYTES_MAX: Final = 256 * MIB
"""Largest message in an answer to FETCH: none of the log is larger."""

ROUTES_MAX: Final = 100_000
"""Topics found by name without asking the catalog."""

ERROR_BYTES_MAX: Final = 64 * KIB
"""Longest error text that the client takes from a server."""

FETCHED_MAX: Final = 1 << 20
"""Most messages, or results of an ACK, that the client takes in one answer."""

ANSWER_MESSAGE_BYTES_MAX: Final = 256 * MIB
"""Largest message that the client takes unless told otherwise."""

CLIENT_WRITE_BYTES_MAX: Final = 1 * MIB
"""Largest message that the client sends unless told otherwise: the server's own default."""

PREFETCH_RECORDS: Final = 4096
PREFETCH_BYTES: Final = 8 * MIB
"""How much a subscription of the client receives ahead of the application, unless told otherwise."""

CLIENT_RECEIVE_BYTES_MAX: Final = 512 * MIB
"""Messages that the client is receiving, together: two of the largest."""

CLIENT_WINDOW_BYTES: Final = 8 * MIB
"""Bytes of WRITEs that the client has sent and not seen answered, unless told otherwise."""

PACKED_BYTES: Final = 64 * KIB
"""WRITEs that ``publish_many`` packs into one entry of the window."""

FETCH_RECORDS: Final = 500
"""Messages that a pull subscription asks for at a time, unless told otherwise."""

"""Every bound that a TANK peer can run into, with the reason for its value.

Sizes are bytes, times are in the unit that the name ends with.
"""

from __future__ import annotations

from typing import Final

FRAME_HEADER_BYTES: Final = 5
"""Message id (u8) and payload size (u32)."""

FRAME_PAYLOAD_BYTES_MAX: Final = 256 << 20
"""Largest payload; the original closes a connection that announces more. Checked before anything is allocated."""

FRAME_BYTES_MAX: Final = FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES_MAX
"""Largest whole frame, the bound of a connection's receive buffer."""

TOPIC_NAME_BYTES_MAX: Final = 64
"""Longest topic name that the original accepts in CreateTopic."""

PARTITIONS_MAX: Final = 65_535
"""Partitions of one topic: the width of the field. Ids run from 0 to 65,534, so 0xFFFF can mean "unknown topic"."""

PARTITION_ID_MAX: Final = 65_535
"""The highest number that fits the field; a client's check before it is sent."""

CONFIG_TEXT_BYTES_MAX: Final = 64 << 10
"""Longest configuration text of CreateTopic: far above every key written out, small enough to keep."""

CONFIG_VALUE_CHARS_MAX: Final = 128
"""Longest value of one configuration key, as in the original."""

BUNDLE_RECORDS_MAX: Final = 1 << 20
"""Messages of a bundle in a Produce: an empty one takes two bytes, next to none if compressed, and every reader of any
protocol passes over them one by one, which takes 8 ms for so many."""

BUNDLE_UNPACKED_BYTES_MAX: Final = 16 << 20
"""What a compressed bundle may unpack to, and the length of any (both as much as the largest record of the topic, if
that is more): every reader unpacks it again, which takes 10 ms for so much."""

BUNDLE_OVERHEAD_BYTES: Final = 64 << 10
"""Room for head and messages around a largest record."""

CHECKED_AT_ONCE_BYTES: Final = 64 << 10
"""A larger Produce that is none of a usual run is read and checked on a thread, and appended in slices: it may name
65,025 partitions, or hold millions of messages."""

FETCH_BYTES_MIN: Final = 32
"""Smaller fetch sizes count as this one, as the original's answers show."""

FETCH_BYTES_MAX: Final = 64 << 20
"""Larger fetch sizes and minimum byte counts count as this one, as in the original."""

CHUNK_BYTES_TARGET: Final = 1 << 20
"""An answer gathers about this many bytes for one partition, whatever the fetch size: a larger one gains no
throughput and holds memory. A single larger bundle is sent whole."""

ANSWER_BYTES_TARGET: Final = 4 << 20
"""Bytes of one answer, shared by its partitions; each may still give one whole bundle."""

ANSWER_BYTES_MAX: Final = 16 << 20
"""An answer never holds more chunk bytes than this, unless its first bundle alone does: what does not fit is left
for the next request. A request may name one partition 65,025 times, and nobody has to read what he asks for."""

GATHERED_BYTES: Final = 1 << 20
"""Small batches of an answer are gathered in buffers of this size: to clear and fill 256 MiB is a stall of 120 ms."""

SHARE_BYTES_MIN: Final = 4 << 10
"""Least part of an answer that a partition gets when very many are asked for at once."""

PIECES_A_STEP: Final = 256
"""Chunks of an answer that are gathered, or of which memory is given back, between two looks at the clock."""

SLICE_BYTES_MIN: Final = 16 << 10
"""Stored batches that are smaller on the average are gathered into one buffer: a write of its own costs more than
copying so much."""

WAIT_MS_MAX: Final = 3_600_000
"""Longest wait of a Consume, as in the original."""

PARTITIONS_PER_REQUEST: Final = 1000
"""A request that looks at so many partitions counts twice, and so on: looking at 65,535 takes about 15 ms."""

WAITING_PARTITIONS_PER_CONNECTION_MAX: Final = 131_072
"""Partitions of waiting requests on one connection. One request can name 65,025. Above it the oldest waiting request
is answered as if its time had run out."""

WAITING_PARTITIONS_MAX: Final = 1_048_576
"""The same over all connections; about 300 bytes each."""

DEFERRED_REQUESTS_MAX: Final = 256
"""Requests of one connection that wait for the answers of Produce requests before them; at this many it is not read."""

BUSY_REQUESTS_MAX: Final = 256
"""Requests of one connection that wait for the disk (not those that wait for records); at this many it is not read."""

SILENT_CONNECTION_S: Final = 16.0
"""A connection that has never sent a byte is closed after this time, as in the original."""

SILENT_CONNECTIONS_MAX: Final = 64
"""At most this many silent connections are kept, the oldest goes first, as in the original; more of them while the
server has less than half of the connections that it may have."""

SEQUENCE_JUMP_MAX: Final = 1 << 32
"""How far beyond the last number a Produce may go: one request must not use up the numbers of a partition."""

SEQUENCE_MAX: Final = (1 << 62) - 1
"""Numbers that a Produce brings end here: cursors, and tags that count from them, have signed 64-bit numbers."""

VARINT_BYTES_MAX: Final = 5
"""Longest varint: a u32 in groups of 7 bits."""

# --- the client's own choices

DEFAULT_PORT: Final = 11011
"""Where the original listens unless told otherwise."""

COMPRESS_BYTES_MIN: Final = 1024
COMPRESS_RECORDS_MIN: Final = 512
"""A bundle with more bytes of keys and values, or more messages, is compressed, as the original's client does."""

BUNDLE_RECORDS: Final = 255
"""Messages of one bundle of ``publish_many``: the Go client of other readers breaks on more."""

BUNDLE_BYTES: Final = 1 << 20
"""Bytes after which a bundle of ``publish_many`` is ended; a larger record goes alone."""

REQUEST_ENTRIES_MAX: Final = 255
"""Topics of a request, and partitions of each: the width of the fields."""

WINDOW_RECORDS: Final = 4096
WINDOW_BYTES: Final = 16 << 20
"""Records, and bytes, that are sent and not acknowledged unless the application says otherwise."""

RECORD_OVERHEAD_BYTES: Final = 64
"""What a record counts in the window and in a prefetch beside its key and value."""

PREFETCH_RECORDS: Final = 65_536
PREFETCH_BYTES: Final = 8 << 20
"""Received ahead of the application."""

FETCH_BYTES: Final = 1 << 20
"""Bytes asked for of one partition at a time."""

POLL_WAIT_MS: Final = 5000
"""Longest wait of one poll of a subscription; a dead server is noticed after it."""

FAILED_DIALS_MAX: Final = 5
"""So many failed attempts to connect in a row fail the requests that wait, as in the original's client."""

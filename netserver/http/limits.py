"""Limits of records over HTTP."""

from __future__ import annotations

from typing import Final

from netserver.limits import KIB, MIB

HTTP_LINE_BYTES_MAX: Final = 2 * MIB
"""One line of a publish: it is decoded in one piece, which takes 10 ms when it consists of the smallest values. Larger
records come as they are (``split=none`` or ``length``)."""

HTTP_BODIES_BYTES_MAX: Final = 512 * MIB
"""What has come of bodies and cannot be appended yet, of all requests together: two records of the largest size. One
more is told to come later, unless it has less than is read from the log at a time."""

HTTP_BUSY_RETRY_S: Final = 1
"""When whoever finds no room is to come again."""

HTTP_HEADERS_MAX: Final = 1000
"""Headers of a record that comes as a line of JSON: each is an object of its own for a while."""

HTTP_PIECE_BYTES: Final = 64 * KIB
"""Lines of a publish that are decoded in one piece: 1 to 3 ms when they are as small as can be."""

HTTP_RECORDS_PIECE: Final = 512
"""Records that are appended, or written out, in one piece: 1 to 2 ms of work."""

HTTP_RECORDS_FRAMED: Final = 4096
"""Records that compiled code writes out, or appends, in one piece: less than a millisecond of work."""

HTTP_READERS_TURN: Final = 8
"""Readers that go on in one turn of the loop, of those that had to wait for one: some of them may have records that
compiled code does not write."""

HTTP_READ_BYTES: Final = 256 * KIB
"""What a reader takes from the log at a time."""

HTTP_READ_LEAST_BYTES: Final = 16 * KIB
"""What it takes at least of each of many partitions, which share the bytes above: it holds a piece of all of them."""

HTTP_JSON_BYTES_MAX: Final = 256 * KIB
"""A search by JSON pointer passes over larger values: to decode one of a megabyte stops everybody for 10 ms, one of
16 MiB for two seconds."""

HTTP_VALUE_WHOLE_BYTES: Final = 256 * KIB
"""Larger values are written out in pieces, ..."""

HTTP_VALUE_PIECE_BYTES: Final = 96 * KIB
"""... of which the slowest, control characters as JSON, takes 2 ms. A multiple of 3: so are those of base64."""

HTTP_BASE64_PIECE_CHARS: Final = HTTP_VALUE_PIECE_BYTES // 3 * 4
"""The same of a large value in base64 that is published in a document."""

HTTP_DECODE_BYTES: Final = 1 * MIB
"""A piece of what is read ends after so many bytes of values, one value at least: each is copied."""

HTTP_WRITE_BYTES: Final = 64 * KIB
"""An answer is sent in pieces of about this size."""

HTTP_ITEMS_DEFAULT: Final = 1000
"""Records in an answer that is one JSON document, unless ``limit`` says otherwise."""

HTTP_ITEMS_MAX: Final = 10_000
"""Records in an answer that is one JSON document; lines and raw bytes have no such bound."""

HTTP_DOCUMENT_BYTES_MAX: Final = 32 * MIB
"""Bytes of values in an answer that is one JSON document: it is in memory as a whole."""

HTTP_HEARTBEAT_S: Final = 5.0
"""A follower without a new record for so long gets an empty line, so that a dead connection is found."""

HTTP_PROGRESS_S: Final = 0.5
"""How often a search says how far it is, when it is asked to."""

HTTP_PARTITIONS_MAX: Final = 1024
"""Partitions that one request reads together: each holds a piece of the log in memory."""

HTTP_GROUPS_POSITIONS_MAX: Final = 100_000
"""Positions of all groups of HTTP consumers: each is an entry on disk that stays until its group is deleted."""

HTTP_TIMESTAMP_MS_MAX: Final = 2**63 - 1
"""What a record's time may be: what eight bytes with a sign hold, as other systems read it."""

HTTP_CREDIT_MAX: Final = 1 << 31
"""Records that a WebSocket may ask for in advance."""

HTTP_SOCKET_MESSAGE_BYTES: Final = 1024
"""What a WebSocket's peer may say in one message: its credit."""

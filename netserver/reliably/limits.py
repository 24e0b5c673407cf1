"""Limits of the JSON streaming protocol, each with its reason; checked before anything is built from the input."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024

LINE_BYTES_MAX: Final = 64 * KIB
"""A line of JSON. The longest request that means something (a uuid of 255 escaped characters, a topic name) is below
4 KiB; the rest is for fields that we have to ignore."""

STATE_DIGITS_MAX: Final = 1 << 20
"""Digits of the value with which a stateless stream is resumed. A stream that doubles has sent more than a terabyte
before it gets there, and one message of that size takes two milliseconds to make."""

LONG_LINE_BYTES_MAX: Final = STATE_DIGITS_MAX + 4 * KIB
"""A line that holds such a value and nothing else; any other is refused at LINE_BYTES_MAX."""

DEPTH_MAX: Final = 32
"""Nesting of arrays and objects in a request: ours have two levels, and the parser is recursive."""

NUMBER_CHARACTERS_MAX: Final = 32
"""Text of a JSON number that becomes an integer here (counts, ids, offsets): twice what 64 bits need."""

UUID_BYTES_MAX: Final = 255
"""UTF-8 bytes of a session's name, which need not look like a UUID."""

COUNT_MAX: Final = 0xFFFF
"""Messages of a stream of numbers (specification, stateful mode)."""

ID_MAX: Final = 0xFFFF_FFFF
"""Message ids are unsigned 32-bit integers (specification, messaging state)."""

OFFSET_MAX: Final = (1 << 63) - 1
"""Offsets and counts of topic streams: sequence numbers are 64-bit, and many JSON libraries are signed."""

MESSAGE_BYTES_MAX: Final = 128 * 1024 * KIB
"""A line from the server, as the client accepts it: a record of the default largest size (16 MiB) stays below even when
every byte of it needs an escape of six characters."""

PREFETCH_MESSAGES: Final = 4096
PREFETCH_BYTES: Final = 8 * 1024 * KIB
"""What the client keeps for its application before it stops reading (lines, and their bytes)."""

SESSION_FILE_BYTES_MAX: Final = 64 * KIB
"""The client's session file: a few hundred bytes, unless it is none."""

SILENT_CLOSES_MAX: Final = 5
"""So many connections in a row that the server closed without a word are a refusal."""

LINES_MAX: Final = 256
"""Lines of one connection that are handled in one turn of the event loop."""

BLOCK_MESSAGES_MIN: Final = 16
"""Messages made ahead for a stream that has just begun: the first one must not wait for a large commit."""

BLOCK_MESSAGES_MAX: Final = 1024
"""Messages of one session that are stored together: one session alone then makes 1024 a commit, 4 KiB of values."""

BLOCK_SHARE_MIN: Final = 64
"""The least a stream may make when many want to: below it the cost of a block is that of its messages."""

BLOCKS_UNSTORED_MAX: Final = 2
"""Blocks of a stream on their way to the disk: one is being synced while the next one waits for its turn."""

TURN_MESSAGES_MAX: Final = 8 * KIB
"""Messages made in one turn of the event loop for all sessions together: about 7 ms of computing."""

UNSTORED_BYTES_MAX: Final = 8 * 1024 * KIB
"""Changes of the state store that wait for the disk, above which no more messages are made: one round is enough."""

ROOM_S: Final = 0.05
"""While the state store is full, it is looked at so often."""

OUTPUT_HIGH_BYTES: Final = 64 * KIB
"""Output that the client has not taken, above which nothing is made or written."""

TURN_BYTES: Final = 64 * KIB
"""Output that one stream adds in one turn of the event loop, as long as other connections wait."""

READ_BYTES: Final = 256 * KIB
"""What a topic stream reads of its topic at a time."""

RELIEF_S: Final = 1.0
"""A full window is doubled after so long without an acknowledgement: a client may acknowledge as rarely as it likes."""

END_WAIT_S: Final = 1.0
"""After the last message the client closes first; we send FIN when nothing was heard of it for so long."""

DRAIN_S: Final = 30.0
"""After our FIN acknowledgements are read until nothing was heard for so long; closing earlier would answer them with
a reset, of which the original's client dies."""

RETRY_S: Final = 1.0
"""Messages could not be stored, or a topic not be read: the stream pauses for so long."""

PAUSES_TOLD_S: Final = 10.0
"""Streams that pause are told in the log at most so often."""

SWEEP_S: Final = 1.0
"""Interval of the look at expired sessions and unstored acknowledgements."""

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
"""A line from the server, as the client accepts it: a record of the default largest size (15 MiB) stays below even when
every byte of it needs an escape of six characters."""

BLOCK_MESSAGES_MIN: Final = 16
"""Messages made ahead for a stream that has just begun: the first one must not wait for a large commit."""

BLOCK_MESSAGES_MAX: Final = 1024
"""Messages of one session in one commit: one session then moves at 1024 messages a round, in 4 KiB of values."""

TURN_MESSAGES_MAX: Final = 8 * KIB
"""Messages made in one turn of the event loop for all sessions together: about 7 ms of computing."""

TURN_BYTES: Final = 64 * KIB
"""Output that one stream may add in one turn of the event loop, as long as other connections wait."""

WINDOW_MESSAGES: Final = 4096
"""Unacknowledged messages on the way to a client that acknowledges. Running far ahead of a client gains nothing and
makes it meet a closed socket when the server dies (the original's client does not survive that)."""

PARAMS_RESTARTS: Final = 1
"""Session starts of one connection whose commit is outstanding; further requests wait for it."""

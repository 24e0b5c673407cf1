"""Every bound that a Figg peer can run into, with the reason for its value. The protocol itself states none."""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 8
"""Message type (u16), protocol version (u16), payload size (u32)."""

FRAME_BYTES_MAX: Final = 17 << 20
"""Default of the largest payload: room for the largest record of the default configuration (16 MiB) and its fields.
Checked as soon as a header is there, before anything is kept or allocated."""

TOPIC_BYTES_MAX: Final = 1024
"""Longest topic name. Names are kept in memory and repeated in every DATA frame."""

SUBSCRIPTIONS_MAX: Final = 65_536
"""Subscriptions of one connection: some hundred bytes each, and every one makes a topic known to the catalog."""

READ_BYTES: Final = 256 << 10
"""Read from the log at once for a subscription: below the high-water mark of the output, large enough for the disk."""

FRAMES_BYTES: Final = 256 << 10
"""About as many bytes of DATA frames are made at once; small records grow by their frames, most of all empty ones."""

COSTLY_S: Final = 0.002
"""A portion of a subscription that takes longer is the last one of its connection in a turn of the loop, and the next
one waits for a turn that has time: full ones of small records take 0.3 ms."""

TURN_BYTES: Final = 1 << 20
"""DATA written for one connection in one turn of the loop: a reader on a fast path must not hold up the others."""

STEPS_A_LOOK: Final = 64
"""Runs of publishes to one topic, and other frames, between two looks at the clock, 0.5 ms: a read holds 16,000 PINGs,
or 9,000 publishes to two topics by turns."""

TOPICS_REMEMBERED_MAX: Final = 4096
"""Topics that a publishing connection finds again without asking the catalog."""

RETRY_S: Final = 1.0
"""Interval of the look at publishers and subscribers that wait for a partition to be usable again."""

RETRY_LATEST_S: Final = 30.0
"""A publisher whose records could not be stored is sent to try again at the latest after this time, whatever we think
of the disk; its client redials at once, so this is the rate of fruitless attempts."""

RESENT_S: Final = 1.0
"""A connection is closed so long after a frame above a limit, or a publish without the right. Its client has no error
to read: it redials at once and sends the frame again, so this is the rate of fruitless attempts (and of warnings in the
log)."""

UNREADABLE_S: Final = 5.0
"""A connection with a subscription whose topic cannot be opened or read is closed after this time: the protocol has no
error, and who only waits learns nothing. Its client redials at once, so this is the rate of fruitless attempts."""

UNANSWERED_S: Final = 2.0
UNANSWERED_CONNECTIONS: Final = 2
"""So many connections in a row that a server closed after having left an ATTACH unanswered for so long mean that it
cannot read the topic: the client ends the subscription."""

UNACKNOWLEDGED_S: Final = 0.5
UNACKNOWLEDGED_CONNECTIONS: Final = 3
"""So many connections in a row that a server closed, after having had publishes for so long and without an ACK, mean
that it does not take them: the client ends. A server that stops acknowledges first, and one that dies is not there
again so soon."""

SPACE_BYTES: Final = 16 << 20
"""So much free space means that a full disk has ended: some rounds fit."""

SHARED_FRAMES_BYTES_MAX: Final = 8 << 20
"""Framed batches kept for other subscribers of the same place. At a time all of them read the newest few rounds."""

FRAMES_AGAIN_BYTES: Final = 16 << 10
"""Kept frames below this are rebuilt, longer, when more has been stored: a write costs as much as 20 KiB of data."""

# --- the client

DEFAULT_PORT: Final = 8119
"""Where the original listens."""

VALUE_BYTES_MAX: Final = 16 << 20
"""Default of the largest value: the largest record of the server's default configuration."""

WINDOW_BYTES: Final = 64 << 20
"""Default of the bytes in the window: 256 values of 256 KiB."""

PACKED_BYTES: Final = 256 << 10
"""Frames packed together at most (one larger goes alone): one write."""

PREFETCH_RECORDS: Final = 65_536
PREFETCH_BYTES: Final = 8 << 20
"""Defaults of what a subscription receives ahead of the application: some portions of a fast reader."""

RECORD_OVERHEAD_BYTES: Final = 64
"""What a prefetched record counts besides its value: two Python objects."""

RUN_BYTES = 256
"""What a run of publishes takes besides its data. With more than `RUNS_FREE` of them outstanding it is charged, so that
a flood of empty ones, to many topics by turns, reaches the connection's bound too."""
RUNS_FREE = 64
"""Runs of publishes that may be outstanding before each is charged ``RUN_BYTES``."""

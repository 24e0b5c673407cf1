"""Limits of what lies in object storage, with their reasons."""

from __future__ import annotations

from engine.limits import STATE_VALUE_BYTES_MAX

HEAD_BYTES_MAX = 256 << 10
"""The head is written whole with each commit: at 40 commits a second 256 KiB are 10 MiB/s."""

CATALOG_PAGES_MAX = 64
"""Pages that one head names: smaller ones are joined, so this is three million segments."""

CATALOG_BYTES_MAX = 16 << 20
"""One page is read whole, and as JSON takes twenty times as much memory at worst: 50,000 segments at 300 bytes each."""

CATALOG_ROWS_MAX = 1 << 20
"""Rows of one kind in one page: beyond what its size can hold."""

PIECE_BYTES_MAX = 128 << 20
"""A piece is in memory whole where it is made and where it is read; it has room for one round of the state. A larger
cut is several pieces, which one head names together."""

PIECE_SECTIONS_MAX = 1 << 16
"""Sections of one piece: 72 bytes each are read before any of them."""

PIECE_CHANGES_MAX = 1 << 20
"""Changes of the state in one piece: as many small ones as its size can hold."""

STATE_BLOCK_BYTES = 1 << 20
"""A block of a copy of the state is closed at this size: large enough for the compression, small enough for memory."""

STATE_BLOCK_BYTES_MAX = (1 << 20) + STATE_VALUE_BYTES_MAX + (1 << 10)
"""What a block may hold: it was smaller than the size above when the largest key and value were added."""

PIN_BYTES_MAX = 4096
"""A pin has five short fields."""

PIN_TTL_MS_MAX = 86_400_000
"""A pin that nobody renews for a day holds up nothing any more, whatever it says."""

PINS_MAX = 1000
"""Readers at once: what a collector reads before it removes anything."""

READ_BLOCK_BYTES = 4 << 20
"""Of an object so much is asked for at once: a request that fails costs a second of a slow line."""

READ_REQUESTS = 8
"""Under way at the same time: with the size above 32 MiB in memory, and more than a line of 10 Gbit/s needs."""

READ_ATTEMPTS = 6
"""Of one request, beside those that the library makes: with the pauses between them half a minute of an outage."""

READ_PAUSE_S = 0.5
"""After the first attempt; twice as long after each further one."""

SNAPSHOT_ROWS_MAX = 1 << 21
"""Rows of all pages together: two million segments are 128 TB, and take a gigabyte of memory."""

RESTORED_FILES_OPEN_MAX = 256
"""Segments that a restore has open at once: of 1024 descriptors that a process may have as a rule."""

UNKNOWN_AHEAD = 1 << 40
"""Numbers that a primary may have given out above the stored ones where its head names no bound: at 100,000 records a
second an outage of four months. After a thousand restores numbers are still exact in JSON."""

RESTORE_PIN_MS = 3_600_000
"""What a restore pins it pins for an hour, and again after a third of that."""

PROBE_RACERS = 8
"""Writers at once of which one has to win: stores that cannot do it show it with fewer."""

COMPARE_BYTES = 8 << 20
"""Read at once of an object whose writing was unclear, to compare it."""

OBJECT_NAME_BYTES_MAX = 900
"""S3 allows 1024 bytes for a name, the prefix of the lineage included."""

OWNER_BYTES_MAX = 64
"""Who wrote a head, for the operator to read: the name of a host and a number."""

ADDRESS_BYTES_MAX = 1024
"""Where the primary is reached: a few names with ports."""

CONFIG_ITEMS_MAX = 64
"""Settings of one topic: there are fewer."""

CONFIG_BYTES_MAX = 1024
"""Name or value of one of them."""

NUMBER_MAX = (1 << 63) - 1
"""Other numbers in JSON: as large as readers in other languages have them."""

U64_MAX = (1 << 64) - 1
"""Segment ids, sequence numbers and times of records have 64 bits."""

EPOCH_MAX = (1 << 32) - 1
"""A takeover each second for 136 years."""

TTL_MS_MIN = 100
"""Of a lease: below it a pause of the machine is a takeover."""

TTL_MS_MAX = 86_400_000
"""Of a lease: after a day somebody decides, not a clock."""

"""Limits of the console."""

from __future__ import annotations

from typing import Final

from netserver.limits import KIB, MIB

CONSOLE_LOGIN_S: Final = 120.0
"""A login address counts for so long: it stands in a terminal and in the browser's history."""

CONSOLE_LOGINS_MAX: Final = 100
"""Login addresses that nobody has used yet; the oldest makes room."""

CONSOLE_SESSION_S: Final = 12 * 3600.0
"""Somebody has to log in again after so long."""

CONSOLE_SESSIONS_MAX: Final = 1000
"""People who are logged in; the one who has been for longest makes room."""

CONSOLE_FORM_BYTES_MAX: Final = 64 * KIB
"""A form: decoding one in which each byte is escaped takes 5 ms. Topics' names may have 64 KiB, but not in a form."""

CONSOLE_FORM_FIELDS_MAX: Final = 200
"""Fields of a form; a topic has some twenty settings."""

CONSOLE_ROWS: Final = 100
"""Rows of a list on one page: 2 ms to write."""

CONSOLE_RECORDS: Final = 50
"""Records on one page unless `limit` says otherwise, ..."""

CONSOLE_RECORDS_MAX: Final = 200
"""... and at most: a page with all of them cut is half a megabyte."""

CONSOLE_CUT_BYTES: Final = 2 * KIB
"""Bytes of a key or value that a list shows; the rest is on the record's page."""

CONSOLE_VALUE_BYTES: Final = 64 * KIB
"""Bytes of a value that the record's own page shows; larger ones are there to download."""

CONSOLE_SEARCH_S: Final = 1.0
"""A search that has not filled its page by then shows how far it came, and a link to go on."""

CONSOLE_SEARCH_BYTES: Final = 64 * MIB
"""Bytes of records that one page looks through."""

CONSOLE_MERGED_RECORDS: Final = 20_000
"""Newest records that a page of several partitions merges: so many partitions, fewer of each."""

CONSOLE_LIVE_MAX: Final = 32
"""Pages that are live at a time: each holds a connection of the admin listener for good."""

CONSOLE_LIVE_S: Final = 0.25
"""Time between two messages to a live page."""

CONSOLE_LIVE_RECORDS: Final = 50
"""Newest records in such a message; the others of a fast topic are counted and passed over."""

CONSOLE_PARTITIONS_SUMMED: Final = 256
"""Partitions of a topic whose sizes the list of topics adds up: each is a look into a file."""

CONSOLE_SEGMENTS_SHOWN: Final = 500
"""Segments of a topic that are drawn as bars."""

CONSOLE_SCAN: Final = 500
"""Names that are looked at in one slice of a list: half a millisecond."""

HISTORY_SECONDS: Final = 900
"""Seconds of rates that are kept."""

HISTORY_DISK_MINUTES: Final = 1440
"""Minutes of free room that are kept, from which the days left are told."""

DISK_RATE_LEAST_S: Final = 600.0
"""Nothing is said of the days left before the free room was watched for so long: a minute's load says nothing."""

LOOK_ROOM_BYTES: Final = 1024
"""Room beside a record's own bytes when it is written as a batch, to show it as Kafka's clients get it."""

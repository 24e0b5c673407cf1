"""Limits of shipping to object storage, with their reasons."""

from __future__ import annotations

DELTA_BYTES_MAX = 32 << 20
"""Changes of the state that wait for a commit: above it they are forgotten, and a whole copy of the state goes instead.
It has to fit into a piece."""

DELTA_CHANGES_MAX = 1 << 18
"""The same for their number: 100 bytes each beside their own."""

CUT_OPENED_MAX = 256
"""Partitions that one cut looks at besides those that rounds have touched: microseconds each, between two rounds."""

OPENING_MAX = 16
"""Partitions that are opened at the same time to see what of them is not stored yet."""

RECENT_BYTES = 64 << 10
"""What heads say beside their pages: they are written whole with each commit."""

RECENT_PIECES = 200
"""Pieces that a head names before they go into a page: 140 bytes each."""

PIECES_KEPT = 256
"""Commits whose pieces are needed, above which the newest are put together as one: whoever reads asks for each."""

MERGE_PAUSE_S = 60.0
"""After a merge that could not be made, because a file was just removed, as long none is tried."""

RECENT_MS = 300_000
"""How long a head says something that could be in a page: a page costs a request."""

PAGES_MAX = 24
"""Pages above which all are written anew: fewer than a head may name, so that a commit has room for its own."""

PAGE_ROWS = 4000
"""Rows of one page: writing it as JSON takes 10 ms of the interpreter, and connections wait for as long."""

PAGE_BYTES = 1 << 20
"""The same where rows are large."""

SEGMENT_OBJECT_BYTES_MAX = 4 << 30
"""Larger segments stay in their pieces: S3 takes 5 GiB in one request."""

STATE_COPY_BYTES_MAX = 4 << 30
"""A copy of the state is one request, too."""

STATE_DELTA_BYTES = 8 << 20
"""Changes of the state after its last copy, above which there is a new one: whoever restores reads them all."""

STATE_COPY_MS = 3_600_000
"""The same for the time since."""

PIECES_PER_COMMIT_MAX = 4096
"""Pieces that one head names together: 16 GiB at their usual size. A cut that is larger is not stored."""

ATTEMPTS = 3
"""Attempts at a write before it counts as unclear, and its outcome is asked for again and again."""

BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses after attempts that failed: a store that is busy is not asked more often for that."""

JOIN_ATTEMPTS_MAX = 8
"""Heads that may come in between while the next epoch is begun: late ones of the process before."""

HASH_BYTES = 256 << 10
"""Of a mapped file that are hashed at once: where it has to be read from the disk, half a millisecond."""

COLLECT_MS = 60_000
"""Time between two looks for what nothing needs any more."""

ORPHANS_MS = 3_600_000
"""The same for objects that earlier starts have left: it lists everything."""

PROBES = 5
"""Looks at what a store can do before it counts as one that cannot."""

AHEAD = 1 << 40
"""Numbers above the stored ones that may have been given out when a restore begins, and are left out by it. A million
records a second for twelve days: nothing stops a server whose store is away."""

TOLD_FAILURES = 3
"""Requests without an answer, one after another, of which the log tells: one that is lost is no outage."""

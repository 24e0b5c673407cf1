"""Limits of what all tools take in."""

from __future__ import annotations

SMALL_FILE_BYTES_MAX = 64 << 10
"""``server.json`` and tokens."""

IDENTITY_BYTES_MAX = 64
"""What a server answers to the question which directory it has: two numbers of 64 bits."""

UPKEEP_BEAT_S = 1.0
"""How often work for a server says how far it is: well below the 10 s that commands wait for an answer."""

UPKEEP_NICE = 10
"""Niceness of work for a server: about a tenth of the time that the server itself gets where both want all of it."""
SUCCESSOR_PREPARES_S = 60
"""A next server that has not read its configuration within this time is given up; loading takes it a second."""
STATUS_S = 10
"""Time between two lines of status for the service manager."""
WATCHDOG_PART = 0.3
"""Three heart beats fit into the time after which the service manager takes the server for hung."""
HANDOVER_WARN_S = 0.2
"""So long clients may take to leave that can be told that another server takes over: a round trip of a far one. The
others are served meanwhile."""
SUCCESSOR_TAKES_S = 1.0
"""A next server that does not read what it is told is stopped: it reads until the end."""
HANDOVER_DRAIN_S = 0.1
"""When another server takes over everybody waits for it, and what is outstanding is a round of the log."""

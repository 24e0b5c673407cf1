"""Names of what lies in a data directory; docs/format.md has the whole."""

from __future__ import annotations

STATE = "state"
"""Directory of the LMDB environment with all that is not in segments."""
LMDB_DATA_FILE = "data.mdb"
LMDB_LOCK_FILE = "lock.mdb"
"""In it and in the index: LMDB's own names. The second has nothing that a copy needs."""
TOPICS = "topics"
"""Directory of the topics' directories, each named by the topic's id."""
TOPIC_FILE = "topic.json"
"""In a topic's directory: its name and settings."""
VERSION_FILE = "VERSION"
"""JSON: format version and random directory id."""
LINEAGE_FILE = "lineage.json"
"""JSON: what of object storage belongs to this directory."""
FORMAT_VERSION = 1
OLDEST_VERSION = "0.1.0"
"""The first version that reads and writes this format."""

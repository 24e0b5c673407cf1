"""Names of what lies in a data directory; docs/format.md has the whole."""

from __future__ import annotations

TOPICS = "topics"
"""Directory of the topics' directories, each named by the topic's id."""
TOPIC_FILE = "topic.json"
"""In a topic's directory: its name and settings."""
VERSION_FILE = "VERSION"
"""JSON: format version and random directory id."""
FORMAT_VERSION = 1

"""Segment files of a partition: found, scanned, recovered, appended to, and how far they are committed."""

"""Sealed segments in object storage: copied there, and read from there."""

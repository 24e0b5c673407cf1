"""Partitions: numbers are given out, records gathered and read; files made, kept and removed."""

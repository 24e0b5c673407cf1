"""Commit rounds: many appends, one write and one sync for each file, one answer to everybody."""

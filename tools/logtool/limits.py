"""Limits of what `logtool` takes in."""

from __future__ import annotations

VALUE_BYTES_MAX = 250 << 20
"""Largest record that any server takes (`record_bytes_max` at its highest): an input without a delimiter stops here."""

READ_BYTES = 256 << 10
"""Size of one read of an input."""

ADMIN_ANSWER_BYTES_MAX = 64 << 20
"""Answers of the admin API: a list of 100,000 topics has about 20 MB."""

SMALL_FILE_BYTES_MAX = 64 << 10
"""``server.json`` and tokens."""

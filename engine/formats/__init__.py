"""Bytes on disk: bundles, batches and segments. No I/O; all that readers outside the server need."""

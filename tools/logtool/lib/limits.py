"""Limits of what `logtool` takes in."""

from __future__ import annotations

VALUE_BYTES_MAX = 250 << 20
"""Largest record that any server takes (`record_bytes_max` at its highest): an input without a delimiter stops here."""

READ_BYTES = 256 << 10
"""Size of one read of an input."""

ADMIN_ANSWER_BYTES_MAX = 64 << 20
"""Answers of the admin API: a list of 100,000 topics has about 20 MB."""

WAL_RECORD_BYTES_MAX = 16 << 20
"""Payload of a record in BlipMQ's write-ahead log: its frames are no larger."""

IMPORT_BATCH_RECORDS = 1000
"""Records of one request of an import, ..."""

IMPORT_BATCH_BYTES = 8 << 20
"""... and their bytes: a body of the admin API has 32 MiB at most, and one record of 16 MiB in base64 fits."""

COPY_BYTES = 1 << 20
"""What a backup reads at a time."""

MANIFEST_BYTES_MAX = 1 << 30
"""``backup.json``: 200 bytes for each of some million segment files."""

BENCH_RECORDS_MAX = 100_000_000
"""Records of one measurement: the times of their groups are kept, half a gigabyte where each is a group of its own."""

DEFINITIONS_BYTES_MAX = 64 << 20
"""A file of definitions: 100,000 topics have about 20 MB."""

CONTEXTS_BYTES_MAX = 1 << 20
"""``contexts.json``: some thousand addresses."""

DEBUG_LOG_BYTES = 4 << 20
"""So much of the end of a log goes into a bundle: a day of a busy one, and small enough to be sent."""

DEBUG_FILES_MAX = 100_000
"""Files of a data directory that a bundle lists: about 10 MB before they are compressed."""

COMPLETED_NAMES_MAX = 1000
"""Names of topics that a shell is offered: more than anybody reads, and it takes seconds to show them."""

COPIES_OF_DAMAGED = 3
"""A segment that the server writes to may be read in the middle of a write: a damaged copy is made so many times."""

STATE_COPIES = 100
"""A backup takes the state again while staged files that it names are gone: each time a sink has finished a batch."""

CERTIFICATE_BYTES_MAX = 1 << 20
"""Of a file of certificates: a chain has a few KB, all authorities of a system 200 KB."""

BACKUP_FREE_SHARE = 0.05
"""Of a disk so much stays free of a backup that a server makes: its log may be on the same one, and goes on."""
SYSTEMCTL_S = 5
"""systemctl tells its version within this time, or the unit is made for an older one."""

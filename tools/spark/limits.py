"""Limits of the readers for Spark."""

COLUMN_BYTES_MAX = (1 << 31) - 1
"""Bytes of one column in one record batch: Arrow's type ``binary`` has offsets of 32 bits."""

TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000
"""Latest time of a record in Spark, whose timestamps are int64 microseconds; a later one, which a client may state,
becomes this one."""

RECORD_BATCH_ROWS = 16 * 1024
"""Rows after which a record batch is handed on: smaller ones cost more per row, larger ones only memory."""

RECORD_BATCH_BYTES = 8 << 20
"""Bytes of keys and values after which a record batch is handed on, whatever its rows."""

SPLIT_BYTES = 64 << 20
"""Bytes of segment files that one task reads, unless the option splitBytes says otherwise."""

TRIGGER_DELAY_S = 15 * 60.0
"""How long minOffsetsPerTrigger may hold records back, unless the option maxTriggerDelay says otherwise; as in Spark's
source for Kafka."""

ARCHIVE_BLOCK_BYTES = 8 << 20
"""Bytes of one read of an archived segment: each is a request to object storage, of some 50 ms."""

MANIFEST_BYTES_MAX = 1 << 30
"""Bytes of an archive's manifest: some 300 for each segment."""

MANIFESTS_KEPT = 10
"""Older manifests that stay: a reader that has listed them finds one of them a little later."""

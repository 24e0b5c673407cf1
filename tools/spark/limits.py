"""Limits of the readers for Spark."""

COLUMN_BYTES_MAX = (1 << 31) - 1
"""Bytes of one column in one record batch: Arrow's type ``binary`` has offsets of 32 bits."""

TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000
"""Latest time of a record in Spark, whose timestamps are int64 microseconds; a later one, which a client may state,
becomes this one."""

RECORD_BATCH_ROWS = 64 * 1024
"""Rows after which a record batch is handed on: smaller ones cost more per row, larger ones only memory."""

RECORD_BATCH_BYTES = 8 << 20
"""Bytes of keys and values after which a record batch is handed on, whatever its rows."""

SPLIT_BYTES = 128 << 20
"""Bytes of segment files that one task reads at most, unless the option splitBytes says otherwise; as in Spark's
sources of files."""

OPEN_COST_BYTES = 4 << 20
"""As how many bytes the beginning of a range counts where small ranges become one task, unless the option
openCostInBytes says otherwise; as in Spark's sources of files."""

TRIGGER_DELAY_S = 15 * 60.0
"""How long minOffsetsPerTrigger may hold records back, unless the option maxTriggerDelay says otherwise; as in Spark's
source for Kafka."""

ARCHIVE_BLOCK_BYTES = 8 << 20
"""Bytes of one read of an archived segment: each is a request to object storage, of some 50 ms."""

MANIFEST_BYTES_MAX = 1 << 30
"""Bytes of an archive's manifest: some 300 for each segment."""

MANIFESTS_KEPT = 10
"""Older manifests that stay: a reader that has listed them finds one of them a little later."""

TABLE_COMMIT_BYTES = 1 << 30
"""Bytes of segment files that become one commit of a Delta Lake table, unless --commit-bytes says otherwise: what a
killed run repeats; few commits, and files of the size that readers like."""

SINK_STAGE_BYTES = 8 << 20
"""Bytes of rows that a task stages at once, unless the option stageBytes says otherwise: large enough for the disk's
sync, small enough for the memory of server and task."""

SINK_STAGE_BYTES_MAX = 16 << 20
"""The most that stageBytes may say: with the last row it has to fit into one request to the admin API."""

SINK_ROW_BYTES_MAX = 15 << 20
"""Bytes of one row: a staged file of almost SINK_STAGE_BYTES_MAX and one such row fit into a request (32 MiB)."""

SINK_RETRY_S = 120.0
"""How long a task or the driver tries on while the server does not answer, unless the option retryTimeout says
otherwise: a server that recovers after a crash is back sooner."""

SINK_RETRY_PAUSE_S = 0.25
"""Pause between two tries."""

SINK_SILENT_S = 5.0
"""How long tries go on before a warning says why: a server that restarts is back sooner."""

SINK_CALL_S = 600.0
"""Patience with one call: a commit of many GiB is answered when all of it is on disk."""

SINK_ANSWER_BYTES_MAX = 1 << 20
"""An answer of the admin API to the sink has some hundred bytes."""

SINK_ASKED_S = 10.0
"""How long the server of a directory may take to say that it is."""

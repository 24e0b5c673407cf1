"""Jobs on a log: small PySpark programs, to be used and to be read as examples (docs/spark-jobs.md).

Each is a module with ``main(arguments) -> exit code``; run by ``spark-submit FILE`` or by ``logtool spark NAME``.
"""

JOBS = {
    "audit": "Check every byte on many cores: checksums, gaps, doubles, order, footers; exit code 1 on findings.",
    "archive": "Copy new records to Parquet files by topic and date, each record once, however often it is killed.",
    "stats": "Rates, sizes, most frequent keys and lag; plots as PNG.",
    "replay": "Append a range of records to another topic or server, each once, however often it is killed.",
    "compact": "Write the last record of each key into a new topic.",
    "dlq": "Show what is in dead-letter topics, by origin, subscription and time; send it back.",
}

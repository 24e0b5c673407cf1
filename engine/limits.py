"""Limits of the engine: every bound on what a peer, a file or a setting can state, with its reason."""

from __future__ import annotations

# --- settings: the ends of their ranges (engine/config.py) ---

# A segment holds at least one batch of the usual size: below that each batch would pay for a file, a footer and two
# syncs of its own.
SEGMENT_BYTES_MIN = 64 << 10
# A footer lists a position every 64 KiB: 16 GiB make one of 6 MiB, which is still read in one go.
SEGMENT_BYTES_MAX = 16 << 30
# Sealing costs a new file: not more often than once a second and partition.
SEGMENT_AGE_MS_MIN = 1000
SEGMENT_AGE_MS_MAX = 10 * 365 * 86_400_000
# The largest record that every layer can hold: bundle lengths are below 256 MiB, less room for their headers.
RECORD_BYTES_MAX = 250 << 20
# Retention is looked at every few seconds: a shorter age would promise what is not kept.
RETENTION_MS_MIN = 1000
RETENTION_MS_MAX = 1000 * 365 * 86_400_000
RETENTION_BYTES_MAX = 1 << 60
RETENTION_RECORDS_MAX = 1 << 60
# "interval" with a longer time than this is "never" by another name.
SYNC_INTERVAL_MS_MAX = 3_600_000
# A round's bytes are in memory twice for a moment, and everybody waits for its sync.
ROUND_BYTES_MAX = 256 << 20
# Each file of a round is open during it, so this stays below the usual descriptor limit of 1024 with room to spare.
ROUND_FILES_MAX = 512
PENDING_BYTES_MAX = 64 << 30
CACHE_BYTES_MAX = 64 << 30
OPEN_FILES_MAX = 1 << 20
# Threads wait for the disk; beyond this they only cost memory.
SYNC_THREADS_MAX = 128
READER_THREADS_MAX = 128

# --- topics (engine/catalog.py) ---

# Every topic is in memory (about 1 KiB each with its partition), and so is every name.
TOPICS_MAX = 10_000_000
# Ids fit a signed 64-bit number, as readers in other languages have it.
TOPIC_ID_MAX = (1 << 63) - 1
# A topic's name is part of many frames; the longest of the protocols' own limits is far below.
TOPIC_NAME_BYTES_MAX = 1024
# TANK states partitions in 16 bits.
PARTITIONS_PER_TOPIC_MAX = 65_535
# 128 bytes each in the watermarks file: 1.2 GiB.
PARTITIONS_MAX = 10_000_000

# --- state and index (engine/state.py, engine/index.py) ---

# LMDB's own limit; names are hashed before they become part of a key.
LMDB_KEY_BYTES_MAX = 511
# A value is read and written whole, and copied once: what is larger belongs into the log.
STATE_VALUE_BYTES_MAX = 16 << 20
# One transaction of the state: its pages are dirty in memory until the commit.
STATE_ROUND_BYTES_MAX = 64 << 20
# Addresses are 47 bits on the machines we know; growing stops well before.
MAP_BYTES_MAX = 8 << 40
# After an unclean stop an LMDB file is verified before use; 128 MiB take about 2 s.
LMDB_VERIFY_BYTES_MAX = 128 << 20
# Small state is verified at every start: 16 MiB (100,000 topics) take 0.25 s.
STATE_VERIFY_ALWAYS_BYTES = 16 << 20
# Entries of the index nearer together than this would not shorten a read.
INDEX_INTERVAL_BYTES = 64 << 10
# Entries in memory that bring a commit forward, and those above which further ones are given up (200 bytes each).
INDEX_PENDING_WAKE = 50_000
INDEX_PENDING_MAX = 500_000
# Entries deleted in one transaction: half a second.
INDEX_DELETES_MAX = 100_000

# --- records, bundles, batches (engine/bundle.py, engine/batch.py) ---

# Length varints of bundles have at most 4 bytes (7 bits each), so that room for one can be left in place. Above TANK's
# largest frame less its head, and above RECORD_BYTES_MAX with key, timestamp and lengths.
BUNDLE_BYTES_MAX = (1 << 28) - 1
# What a snappy bundle may unpack to: as much as an unpacked one may hold.
BUNDLE_UNPACKED_BYTES_MAX = BUNDLE_BYTES_MAX
# Snappy makes at most 64 bytes out of 3: an announced size above that is a lie.
SNAPPY_OUTPUT_BYTES_MAX = 64
SNAPPY_INPUT_BYTES_MIN = 3
# Keys are preceded by one byte of length.
KEY_BYTES_MAX = 255
# The Go client of TANK breaks on bundles with more messages.
BUNDLE_RECORDS_MAX = 255
# A batch is closed at about this size: one damaged byte costs one batch, a read for one record reads one batch.
BATCH_BYTES_TARGET = 64 << 10
# Bundles of a batch with their length varints: one bundle of the largest size, else about BATCH_BYTES_TARGET.
BUNDLES_BYTES_MAX = BUNDLE_BYTES_MAX + 4
# Headers count into a record's size, so that they can be as large as one.
EXTENSION_BYTES_MAX = BUNDLE_BYTES_MAX
# Zeros between a batch's header and its first bundle: what is left of the 7 bytes kept free for a bundle's head.
PADDING_BYTES_MAX = 6
# Header and padding (94), bundles, extension: what a reader has to be ready for.
BATCH_BYTES_MAX = 94 + BUNDLES_BYTES_MAX + EXTENSION_BYTES_MAX

# --- files (engine/segment.py, engine/scan.py, engine/recovery.py) ---

# Index entries of 24 bytes for every 64 KiB of the largest segment (16 GiB) take 6 MiB; batches of a set of tiny chunks
# do not add entries, so twice that is never reached.
FOOTER_BYTES_MAX = 16 << 20
# Blocks in which a segment is walked: large enough for the disk, small enough for the cache.
SCAN_BYTES = 1 << 20
# A read for one subscriber reads at least this, so that a small request does not become many.
READ_BYTES_MIN = 64 << 10
# Where sequential readers go on, for each partition: a dictionary entry of about 100 bytes each.
POSITION_HINTS_MAX = 1024
# Answers of reader threads that wait to be picked up; at a read's usual size 16 MiB in all.
FETCHED_MAX = 64
# VERSION, topic.json: a few hundred bytes; what is larger is no file of ours.
SMALL_FILE_BYTES_MAX = 1 << 20

# --- chunks (engine/partition.py) ---

# The first chunk of an idle partition: thousands of partitions must not cost a MiB each.
CHUNK_BYTES_MIN = 4 << 10
# Beyond this a larger chunk gives no throughput; half of a round's usual size.
CHUNK_BYTES_MAX = 1 << 20
# Numbers reserved at once for topics whose records are seen before they are on disk: one write of `state` a million
# records, and as many numbers at most are left out after a crash.
SEQ_RESERVATION = 1 << 20
# A transaction is in memory until its round, which takes it whole.
TRANSACTION_BYTES_MAX = 64 << 20
# Subscribers woken in one turn of the owner's loop: 9,000 in one turn stalled it for 94 ms.
WAKE_SLICE = 500

# --- cursors (engine/deliveries.py, engine/cursors.py) ---

# Delivered and not yet acknowledged; at worst every other one is, and the stored cursor then takes 60 KB.
UNACKNOWLEDGED_MAX = 16384
# Records that may go before a redelivery that fell due when they were committed already.
OVERTAKEN_MAX = 1024
# Name of a group of readers (Fujin allows 1024 bytes for names).
CURSOR_NAME_BYTES_MAX = 1024
# Bytes of slabs kept for cursors that are being read, in total; one larger slab is kept alone.
CURSOR_SLABS_BYTES_MAX = 64 << 20
# Numbers in the entries that one submission of moved cursors writes: about 3 MiB.
CURSOR_ROUND_NUMBERS_MAX = 1 << 20
# Dead letters appended and not yet stored.
DEAD_LETTERS_PENDING_MAX = 64
# Read at once for a cursor: 2,600 records of 100 bytes.
CURSOR_READ_BYTES = 256 << 10

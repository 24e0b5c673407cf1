"""Limits of the engine: every bound on what a peer, a file or a setting can state, with its reason."""

from __future__ import annotations

# --- settings: the ends of their ranges (engine/config.py) ---

SEGMENT_BYTES_MIN = 64 << 10
"""A segment holds at least one batch of the usual size: below that each batch would pay for a file, a footer and two
syncs of its own."""

SEGMENT_BYTES_MAX = 16 << 30
"""A footer lists a position every 64 KiB: 16 GiB make one of 6 MiB, which is still read in one go."""

SEGMENT_AGE_MS_MIN = 1000
"""Sealing costs a new file: not more often than once a second and partition."""

SEGMENT_AGE_MS_MAX = 10 * 365 * 86_400_000
"""Ten years: longer is "never", for which a large size does."""

RECORD_BYTES_MAX = 250 << 20
"""The largest record that every layer can hold: bundle lengths are below 256 MiB, less room for their headers."""

RETENTION_MS_MIN = 1000
"""Retention is looked at every few seconds: a shorter age would promise what is not kept."""

RETENTION_MS_MAX = 1000 * 365 * 86_400_000
"""A thousand years, so that times computed from it stay within 64 bits."""

RETENTION_BYTES_MAX = 1 << 60
"""Beyond any file system, within 64 bits."""

RETENTION_RECORDS_MAX = 1 << 60
"""Beyond any log, within 64 bits."""

SYNC_INTERVAL_MS_MAX = 3_600_000
"""With a longer time than this "interval" is "never" by another name."""

ROUND_BYTES_MAX = 256 << 20
"""A round's bytes are in memory twice for a moment, and everybody waits for its sync."""

ROUND_FILES_MAX = 512
"""Each file of a round is open during it, so this stays below the usual descriptor limit of 1024 with room to spare."""

PENDING_BYTES_MAX = 64 << 30
"""More memory than a machine should give to records on their way."""

CACHE_BYTES_MAX = 64 << 30
"""The kernel caches the same files: more than this is better left to it."""

OPEN_FILES_MAX = 1 << 20
"""Linux allows no more descriptors than this by default (`fs.nr_open`)."""

SYNC_THREADS_MAX = 128
"""Threads wait for the disk; beyond this they only cost memory."""

READER_THREADS_MAX = 128
"""As for syncing."""

# --- topics (engine/state/topic_catalog.py) ---

TOPICS_MAX = 10_000_000
"""Every topic is in memory (about 1 KiB each with its partition), and so is every name."""

TOPIC_ID_MAX = (1 << 63) - 1
"""Ids fit a signed 64-bit number, as readers in other languages have it."""

TOPIC_NAME_BYTES_MAX = 65_535
"""BlipMQ's frames allow as much, and its clients may use it; a file is never named after a topic."""

PARTITION_INDEX_BITS = 16
PARTITIONS_PER_TOPIC_MAX = (1 << PARTITION_INDEX_BITS) - 1
"""TANK states partitions in 16 bits."""

PARTITIONS_MAX = 10_000_000
"""128 bytes each in the watermarks file: 1.2 GiB."""

# --- state and index (engine/state/store.py, engine/state/index.py) ---

LMDB_KEY_BYTES_MAX = 511
"""LMDB's own limit; names are hashed before they become part of a key."""

STATE_VALUE_BYTES_MAX = 16 << 20
"""A value is read and written whole, and copied once: what is larger belongs into the log."""

STATE_ROUND_BYTES_MAX = 64 << 20
"""One transaction of the state: its pages are dirty in memory until the commit."""

MAP_BYTES_MIN = 1 << 20
"""Smallest map of an LMDB environment that is tried where the system limits addresses."""

MAP_BYTES_MAX = 8 << 40
"""Addresses are 47 bits on the machines we know; growing stops well before."""

LMDB_VERIFY_BYTES_MAX = 128 << 20
"""After an unclean stop an LMDB file is verified before use; 128 MiB take about 2 s."""

STATE_VERIFY_ALWAYS_BYTES = 16 << 20
"""Small state is verified at every start: 16 MiB (100,000 topics) take 0.25 s."""

INDEX_INTERVAL_BYTES = 64 << 10
"""Entries of the index nearer together than this would not shorten a read."""

INDEX_PENDING_WAKE = 50_000
"""Entries in memory that bring a commit forward."""

INDEX_PENDING_MAX = 500_000
"""Entries in memory above which further ones are given up (200 bytes each)."""

INDEX_DELETES_MAX = 100_000
"""Entries deleted in one transaction: half a second."""

# --- records, bundles, batches (engine/formats/bundle.py, engine/formats/batch.py) ---

BUNDLE_BYTES_MAX = (1 << 28) - 1
"""Length varints of bundles have at most 4 bytes (7 bits each), so that room for one can be left in place. Above TANK's
largest frame less its head, and above RECORD_BYTES_MAX with key, timestamp and lengths."""

BUNDLE_UNPACKED_BYTES_MAX = BUNDLE_BYTES_MAX
"""What a snappy bundle may unpack to: as much as an unpacked one may hold."""

BUNDLE_COUNT_MAX = (1 << 32) - 1
"""Messages of a bundle as far as the encoding goes; what a publisher may bring is less."""

SNAPPY_OUTPUT_BYTES_MAX = 64
"""Snappy makes at most 64 bytes out of 3: an announced size above that is a lie."""

SNAPPY_INPUT_BYTES_MIN = 3
"""See SNAPPY_OUTPUT_BYTES_MAX."""

KEY_BYTES_MAX = 255
"""Keys are preceded by one byte of length."""

BUNDLE_RECORDS_MAX = 255
"""The Go client of TANK breaks on bundles with more messages."""

BATCH_BYTES_TARGET = 64 << 10
"""A batch is closed at about this size: one damaged byte costs one batch, a read for one record reads one batch."""

BUNDLES_BYTES_MAX = BUNDLE_BYTES_MAX + 4
"""Bundles of a batch with their length varints: one bundle of the largest size, else about BATCH_BYTES_TARGET."""

EXTENSION_BYTES_MAX = BUNDLE_BYTES_MAX
"""Headers count into a record's size, so that they can be as large as one."""

PADDING_BYTES_MAX = 6
"""Zeros between a batch's header and its first bundle: what is left of the 7 bytes kept free for a bundle's head."""

BATCH_BYTES_MAX = 94 + BUNDLES_BYTES_MAX + EXTENSION_BYTES_MAX
"""Header and padding (94), bundles, extension: what a reader has to be ready for."""

# --- files (engine/formats/segment.py, engine/segments/damage.py, engine/segments/recovery.py) ---

FOOTER_BYTES_MAX = 16 << 20
"""Index entries of 24 bytes for every 64 KiB of the largest segment (16 GiB) take 6 MiB; batches of many tiny
write batches do not add entries, so twice that is never reached."""

SCAN_BYTES = 1 << 20
"""Blocks in which a segment is walked: large enough for the disk, small enough for the cache."""

UNREADABLE_BYTES = 4096
"""Where the disk cannot read a block, it is read in pieces of a page: no more than that is given up for one sector."""

READ_BYTES_MIN = 64 << 10
"""A read for one subscriber reads at least this, so that a small request does not become many."""

POSITION_HINTS_MAX = 1024
"""Where sequential readers go on, for each partition: a dictionary entry of about 100 bytes each."""

FETCHED_MAX = 64
"""Answers of reader threads that wait to be picked up; at a read's usual size 16 MiB in all."""

CLOCK_SLEW_MS = 1_000
"""A clock that is off by no more than this is being corrected, and followed."""

CLOCK_STEP_MS = 60_000
"""A jump of the clock by less than this is too small to make anything look too old: the ages go on."""

CLOCK_DOUBT_MS = 3_600_000
"""How long a jump of the system's clock has to last before it is believed, unless `clock_doubt` says otherwise."""

CLOCK_OFF_MAX_MS = 400 * 86_400_000
"""A machine that seems to have been off for longer has a wrong clock, until it has lasted."""

CLOCK_PLAUSIBLE_MS = 1_767_225_600_000
"""The start of 2026: an earlier time is that of a machine that has not been told the time yet."""

CLOCK_SAVE_MS = 600_000
"""Time after which the time is written down again, for the next start: a few hundred bytes and a sync."""

SMALL_FILE_BYTES_MAX = 1 << 20
"""VERSION, topic.json: a few hundred bytes; what is larger is not a file of ours."""

# --- write batches (engine/partitions/partition.py) ---

WRITE_BATCH_BYTES_MIN = 4 << 10
"""The first write batch of an idle partition: thousands of partitions must not cost a MiB each."""

RECORD_OVERHEAD_BYTES = 32
"""Room asked for beside a record's own bytes: flags, timestamp, key length, value length, a new batch's bundle head."""

WRITE_BATCH_BYTES_MAX = 512 << 10
"""Beyond this a larger write batch gives no throughput; half of a round's usual size."""

FREE_BUFFER_BYTES_MAX = 16 << 20
"""Free write batch buffers kept for the next write batches: a few rounds' worth."""

TAIL_SMALL_BYTES = 4 << 10
"""Committed write batches up to this size are copied together in memory, which costs less than reading each."""

TAIL_MERGED_BYTES = 64 << 10
"""Size up to which they are: a reader walks half of it at most to find its place, 300 batches of one small record."""

INLINE_BYTES_MAX = 64 << 10
"""A round up to this size is written on the owner's thread if it needs no sync: about 10 microseconds."""

ROUND_PARTS_MAX = 16
"""Files of a round that is done without the interpreter (as many places, and threads that sync, as the compiled code
has): a round of more waits for the disk rather than for the interpreter."""

PARTITIONS_MADE_TOGETHER = 256
"""New partitions whose files are made together: as many as a round takes; later ones wait for about 0.2 s."""

ROUND_PIECES_MAX = 64
"""Write batches of a round that one call writes (the compiled code has as many places): a full round has four large
ones; one of more and smaller goes the slower way."""

ROUND_NUMBERED_BYTES = 512
"""What a batch of a producer that numbers its records counts in a round beside its bytes: when the round is settled the
owner notes each, in 3 us. A round of 2 MiB of the smallest would have 14,000 of them, and has 4,000."""

SHARED_ROUND_BYTES = 512 << 10
"""A round while several partitions are in use: a small one waits for a flood's share of this and the one before it."""

SHARED_ROUNDS = 64
"""Rounds of one partition alone after which larger ones are taken again: a small publisher comes and goes between."""

SEQ_RESERVATION = 1 << 20
"""Numbers reserved at once for topics whose records are seen before they are on disk: one write of `state` a million
records, and as many numbers at most are left out after a crash."""

LOST_RESERVATION = 4 * SEQ_RESERVATION
"""Numbers left out when the bound itself was lost with the state: what may have been given out since the watermarks
were last synced, about a second before."""

TRANSACTION_BYTES_MAX = 64 << 20
"""A transaction is in memory until its round, which takes it whole."""

TRANSACTION_PARTITIONS_MAX = 512
"""Its round has all their files open, and settles them in one turn of the owner's loop: 5 ms."""

FILES_CHECKED_MS = 60_000
"""Segments are looked for each second while they have been written to in this time: a look at each of very many idle
ones would cost more than it tells."""

SESSION_REMOVALS_MAX = 50_000
"""Keys of expired sessions that are removed in one submission of the state, beside those of the last session: each is
some 30 bytes of it, and a session may have thousands of blocks."""

LEDGER_WRITERS_MAX = 100_000
"""Writers whose last batch is remembered; some 100 bytes each, and all are walked when old ones are looked for."""

WALK_KEYS = 256
"""Keys of the state that are read, or removed, together where very many are gone through: some 0.2 ms."""

LEDGER_KEEP_MS = 90 * 86_400_000
"""The last batch of a writer that has been silent for so long is forgotten; who repeats a batch does it within days."""

ROUND_SIZES_MAX = 10_000
"""Sizes of commit rounds kept for the histograms until the next scrape; later ones are only counted."""

MAKER_ROOM_MIN = 16
"""Topics, and partitions, that each maker may make as long as there is any room at all."""

MAKER_HALF_LIFE_S = 3600.0
"""In this time half of what a maker has made is forgotten: somebody who wants to use up the room needs hours, in which
the operator sees it."""

MAKERS_MAX = 10_000
"""Makers that are remembered, 100 bytes each; beyond it the one that has made nothing for longest is not."""

SLICES_S = 0.002
"""Time in one turn of the owner's loop for work that is done in slices, of all together: a publish goes through four
turns until it is acknowledged, and the turns themselves cost a twentieth of this. 9,000 subscribers woken in one turn
stalled it for 94 ms."""

SLICES_FREE_S = 0.0005
"""What goes through its steps in less does not ask for its share of that: most commit rounds have one or two to tell,
and to ask is another round of the loop."""

STRETCHES_MAX = 1024
"""Places in a partition where numbers are known to be left out; above, older ones are joined (100 KB of memory)."""

STRETCH_BATCHES_MAX = 64
"""Batches of one write batch whose headers are looked at for numbers left out between them; else it is one stretch."""

PRODUCERS_MAX = 10_000
"""Producers of a partition whose last records are remembered, 600 bytes each, and 60 in each footer. One is forgotten a
day after its last record, and a program is a new one at each start."""

PRODUCER_RUNS_MAX = 10
"""Rows of records that are remembered of a producer: it has at most five batches under way, each of which a crash may
have stored in two pieces."""

PRODUCER_KEEP_MS = 86_400_000
"""A producer that has been silent for so long is forgotten, as in Kafka: it may begin with any count."""

# --- cursors (engine/cursors/deliveries.py, engine/cursors/table.py) ---

UNACKNOWLEDGED_MAX = 16384
"""Delivered and not yet acknowledged; at worst every other one is, and the stored cursor then takes 60 KB."""

OVERTAKEN_MAX = 1024
"""Records that may go before a redelivery that fell due when they were committed already."""

CURSOR_NAME_BYTES_MAX = 1024
"""Name of a group of readers (Fujin allows 1024 bytes for names)."""

CURSOR_READ_BATCHES_BYTES_MAX = 64 << 20
"""Bytes of read batches kept for cursors that are being read, in total; one larger one is kept alone."""

CURSOR_ROUND_NUMBERS_MAX = 1 << 20
"""Numbers in the entries that one submission of moved cursors writes: about 3 MiB."""

CURSORS_LOADED_MAX = 20_000
"""Cursors in memory (about 1.5 KiB each) above which those not used for a second are let go."""

LAG_SAMPLE_MS = 10_000
"""How often it is noted what waits for each cursor, so that a trend can be told: 2 us each."""

LAG_HISTORY_SAMPLES = 360
"""Of a durable position what waited for it is remembered so often: an hour."""

LAG_HISTORIES_MAX = 1000
"""Positions of which that is remembered, the oldest ones: 3 MB."""

DEAD_LETTERS_PENDING_MAX = 64
"""Dead letters appended and not yet stored."""

REDRIVE_RECORDS = 255
"""Dead letters appended at once when they are redriven, ..."""

REDRIVE_BYTES = 1 << 20
"""... and the bytes of their values after which no further one is added."""

CURSOR_READ_BYTES = 256 << 10
"""Read at once for a cursor: 2,600 records of 100 bytes."""

"""Every bound that a Kafka peer can run into, with the reason for its value.

Sizes are bytes, times are in the unit that the name ends with.
"""

from __future__ import annotations

from typing import Final

SIZE_BYTES: Final = 4
"""The length in front of each frame."""

REQUEST_BYTES_MAX: Final = 100 << 20
"""Largest request, as in the original. Checked before anything is allocated."""

FRAME_BYTES_MAX: Final = SIZE_BYTES + REQUEST_BYTES_MAX
"""Largest whole frame, the bound of a connection's receive buffer."""

REQUEST_HEAD_BYTES_MIN: Final = 8
"""Api key, version and correlation id: what is read of a request of a version that is not spoken."""

PLAIN_REQUEST_BYTES_MAX: Final = 4 << 20
"""Largest request that brings no records: a Fetch of 40,000 partitions has 2 MiB."""

ELEMENTS_MAX: Final = 100_000
"""Elements of all arrays of a request together: each costs about 500 bytes once it is read, and 2 us to read."""

STRING_BYTES_MAX: Final = 32_767
"""Longest string: the width of its length where a version is not flexible; flexible ones keep to it."""

VARINT_BYTES_MAX: Final = 5
"""Longest varint: a u32 in groups of 7 bits."""

CHECKED_AT_ONCE_BYTES: Final = 64 << 10
"""A larger request is read, and its records are checked, by a thread: that may take 200 ms."""

UNPACKED_AT_ONCE_BYTES: Final = 1 << 10
"""The same for a Produce with compressed records: they may be ten thousand times as long."""

PIPELINED_MAX: Final = 1024
"""Produce requests of one connection that wait for the disk; at so many it is not read. They are bounded by their
bytes, too."""

ANSWER_BYTES_MAX: Final = 4 << 20
"""Records in one Fetch answer, however much is asked for: a larger one gains no throughput and holds memory. The first
batch comes whole in any case."""

SENT_FROM_PLACE_BYTES: Final = 16 << 10
"""Records of an answer that are not copied into it: for fewer a copy costs less than a piece of its own."""

CHUNK_BYTES_MAX: Final = 1 << 20
"""Records of one partition in one answer, for the same reason; it is what clients ask for."""

WAITED_BYTES_MAX: Final = 1 << 20
"""A Fetch that waits for more than this is answered when this is there: what was read already is held meanwhile."""

WAIT_MS_MAX: Final = 300_000
"""Longest wait of a Fetch; clients ask for half a second. While one waits nobody notices that its client is gone."""

WAITING_PARTITIONS_MAX: Final = 1 << 20
"""Partitions of all Fetches that wait; about 400 bytes each. Beyond it a Fetch is answered at once."""

TOPIC_NAME_CHARS_MAX: Final = 249
"""Longest name of a topic that is made here, as in the original."""

SCAN_BYTES: Final = 256 << 10
"""Read at a time when a record is looked for by its time."""

# --- logging in

LOGIN_REQUEST_BYTES_MAX: Final = 64 << 10
"""Largest request before somebody has logged in: a stranger has no reason to have more gathered, or hashed."""

LOGIN_S: Final = 30.0
"""Whoever has not logged in by then is closed, as at BlipMQ's listener: others may need the connection."""

# --- groups

SESSION_MS_MIN: Final = 6000
SESSION_MS_MAX: Final = 1_800_000
"""How long a member may be silent, as in the original."""

JOIN_DELAY_S: Final = 0.5
"""The first member of a group waits for others, and again after each that comes: else every start of several consumers
is as many rebalances. The original waits three seconds."""

GROUP_NAME_BYTES_MAX: Final = 1024
"""Longest name of a group: it is on disk with each offset that the group commits."""

GROUPS_MAX: Final = 10_000
"""Groups that somebody is in or was; about 1 KiB each. Those that nobody is in go first."""

MEMBERS_MAX: Final = 20_000
"""Members of all groups together; about 2 KiB each, and each has a timer."""

CLIENT_ID_CHARS_MAX: Final = 255
"""So much of what a client calls itself is in the id of a member, and shown of it. An instance with a longer name is
refused: Kafka's clients allow 249 characters."""

PENDING_MEMBERS_MAX: Final = 1000
"""Ids of a group that were given and not used yet; the oldest goes first."""

MEMBER_BYTES_MAX: Final = 256 << 10
"""What a member says of itself: consumers send some names of topics, Streams some KiB."""

PROTOCOLS_MAX: Final = 64
"""Ways to share partitions that a member offers, each compared with those of all others: clients have one to four."""

MEMBERS_BYTES_MAX: Final = 64 << 20
"""The same of all members together, with what they were told to read."""

COMMIT_METADATA_BYTES_MAX: Final = 4096
"""Text beside a committed offset, as in the original."""

OFFSETS_MAX: Final = 1_000_000
"""Committed offsets of all groups; about 300 bytes each, in memory and on disk."""

OFFSETS_KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long the offsets of a group that nobody is in are kept after its latest commit, as in the original."""

OFFSETS_LOOK_S: Final = 3600.0
"""Between two looks for such groups."""

# --- transactions

TRANSACTIONAL_ID_BYTES_MAX: Final = 1024
"""Longest transactional id: it is kept for a week."""

IDS_MAX: Final = 50_000
"""Transactional ids that are known: about 1 KiB each, in memory and on disk."""

IDS_KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long one that nobody uses is known, as in the original."""

IDS_LOOK_S: Final = 3600.0
"""Between two looks for such ids."""

IDS_FORGOTTEN_MAX: Final = 5000
"""Forgotten at one look: 2 us each."""

EPOCH_MAX: Final = 32_766
"""Last epoch that a producer is given: there is always a higher one to fence it with."""

TRANSACTION_MS_MAX: Final = 900_000
"""How long a transaction may be open, as in the original. Its records are in memory all the time."""

TRANSACTION_BYTES_MAX: Final = 64 << 20
"""Records, offsets and partitions of one transaction: as much as the log takes in one, which it does in one round."""

TRANSACTIONS_BYTES_MAX: Final = 256 << 20
"""The same of all open ones together. Those that are being committed take as much again."""

TRANSACTION_OFFSETS_MAX: Final = 2000
"""Offsets of groups in one transaction: they are packed in the turn that commits it, 4 us each."""

PLACE_BYTES: Final = 256
"""What a partition of a transaction takes, or an offset beside its text and the name of its group."""

REPEATS_KNOWN: Final = 5
"""Batches of a partition that are known when they come again: clients have so many under way, as in the original."""

SEQUENCES_MAX: Final = 200_000
"""Partitions in which is known how far a transactional producer has counted, of all of them; 600 bytes each. Beyond it
those that are in no transaction are forgotten: any count is taken of them."""

# --- records

UNPACKED_BYTES_MAX: Final = 64 << 20
"""What a compressed batch may unpack to: gzip makes 1,000 bytes of one, zstd 10,000 and more. Clients gather some MiB
before they compress. It is as much as a transaction may hold in memory."""

REQUEST_UNPACKED_BYTES_MAX: Final = 128 << 20
"""The same of all batches of a request, of which there may be 100,000; what is no batch counts as a whole one. Somewhat
more than a request that is not compressed may have."""

CHECKED_TOGETHER_MAX: Final = 4
"""Large or compressed requests that are checked and not appended yet: one is checked while others are appended. What
they unpack to is in no bound of connections."""

UNPACKED_GUESS: Final = 8
"""Times its size that a batch unpacks to at first: text seldom gives more. What does not fit is unpacked again, into as
much address space as the bound."""

UNPACKED_GUESS_BYTES_MIN: Final = 16 << 10
"""First room at least: the usual batch of a client that does not gather."""

HEADERS_MAX: Final = 10_000
"""Headers of one record: each becomes two objects of some 40 bytes, out of 2 on the wire."""

RECORDS_MAX: Final = 1_000_000
"""Records of one batch: giving them their numbers is one step, 1.5 us for each 255. Clients halve a larger batch."""

CHECKED_RECORDS: Final = 10_000
"""Looked at in one go, 1 ms: in between the loop gets the interpreter."""

PACKED_RECORDS: Final = 4096
"""Put into the log's form in one step, at most, 0.5 ms."""

JOINED_BYTES_MAX: Final = 16 << 20
"""Records of one batch that one round stores, or none: as much as the largest single record. Clients send a MiB at
most, unless they are told otherwise."""

RECORD_MORE_BYTES: Final = 16
"""What a record takes in the log beyond what it takes in a client's batch: 13 bytes of time, flags and lengths instead
of at least 7, and its part of a batch's head. As much again for a header or a mark."""

BATCH_MORE_BYTES: Final = 256
"""What the heads of a batch take."""

PACKED_OBJECTS_MAX: Final = 500
"""The same for headers, and records that messages have no place for: 2 us each. One record has all of its own."""

APPENDED_AT_ONCE_US: Final = 2000
"""Records of a request whose appending takes longer are appended in steps."""

APPENDED_AT_ONCE_PARTS: Final = 100
"""The same for a request of more partitions: each is looked up, 10 us with its rights."""

ANSWERED_AT_ONCE_PARTS: Final = 1000
"""The answer to a Produce of more partitions is put together in steps: 2 us for each."""

COMMITTED_AT_ONCE: Final = 1000
"""Offsets that become one change of the state: 5 us for each. A crash may leave some of an unanswered commit."""

FETCHED_BATCH_BYTES: Final = 64 << 10
"""A batch of a Fetch answer is ended at about this size, as those of the log are: clients verify whole ones."""

FETCHED_OBJECTS_MAX: Final = 1000
"""Records with headers, or what else messages have no place for, in one answer of the encoder: 2 us each."""

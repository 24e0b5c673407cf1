"""Limits of the BlipMQ protocol: every length and count that a peer can state, with its reason."""

from __future__ import annotations

LENGTH_BYTES = 4
"""The length word in front of each frame; it counts everything after itself."""

HEADER_BYTES = 13
"""Length word, type byte and correlation id."""

FRAME_LENGTH_MIN = 9
"""Type byte and correlation id: the smallest legal length word."""

FRAME_LENGTH_MAX = 16 * 1024 * 1024
"""The largest legal length word: part of the protocol."""

AUTH_LENGTH_MAX = FRAME_LENGTH_MIN + 2 + 0xFFFF
"""The largest length word before AUTH has succeeded: the longest AUTH. The original lets a stranger announce 16 MiB;
here a peer cannot make the server gather more than the longest frame that it has a reason to send."""

PUBLISH_HEAD_BYTES = 12
"""Of a PUBLISH's length word: type, correlation id, QoS, topic length. A DELIVER has 8 more."""

TOPIC_BYTES_MAX = 0xFFFF
"""A topic's length is a u16."""

RUN_FRAMES_MAX = 16_384
"""Frames packed or answered by one call of a compiled loop; more than a read buffer of smallest PUBLISHes holds. It
sizes the scratch buffer of correlation ids (8 bytes each)."""

ANSWERS_BYTES_MAX = 256 * 1024
"""Answers that may wait behind uncommitted publishes of their connection; beyond it the connection is not parsed."""

POLL_REPLY_BYTES_MAX = 256 * 1024
"""Deliveries gathered before they are handed to the connection; one larger delivery goes alone."""

SUBSCRIPTIONS_MAX = 10_000_000
"""All cursors of the server together: each takes about 100 bytes of memory, and SUBSCRIBE makes one for ever."""

ROUTES_MAX = 100_000
"""Topics found by name without asking the catalog."""

# --- version 2

KEY_BYTES_MAX = 255
"""A record's key in the log."""

TTL_DIGITS_MAX = 10
"""Of a time to live in a header: it is a u32."""

CONNECTION_CURSORS_MAX = 10_000
"""Cursors that a connection may have pushed, one for each topic of a pattern: each is about 1.5 KiB."""

CONNECTION_TOPICS_MAX = 20_000
"""Subscriptions of one topic each of a connection, with those that wait since their topic was deleted: each is about
300 bytes."""

CONNECTION_PATTERNS_MAX = 1000
"""Patterns of a connection, which may stand for no topic at all."""

CONNECTION_SHAPES_MAX = 32
"""Arrangements of wildcards among the patterns of a connection: each topic that is made is looked up once for each,
of all connections. A thousand `orders.NUMBER.*` have one."""

PATTERN_TOKENS_MAX = 32
"""Tokens of a pattern; names of topics that have more are matched by a `>`."""

TOPICS_A_STEP = 256
"""Topics compared with a new pattern between two looks at the clock, about 0.1 ms."""

PUSH_RANGES_MAX = 1024
"""Ranges remembered of what a group's member was given; what is older comes back by the back-off timer only."""

PUSH_WINDOW = 1024
"""Unacknowledged messages per pushed subscription, as many as the original keeps in flight."""

PUSH_BYTES = 64 * 1024
"""What one subscription may write before the connection's others get their turn, ..."""

PUSH_TURN_BYTES = 256 * 1024
"""... and what a connection may write in one turn of the loop."""

# --- our client

DEFAULT_PORT = 5555
"""Of the original."""

CLIENT_WINDOW_RECORDS = 16_384
"""Publishes sent and not yet confirmed: at 100 bytes one round of the server's log."""

CLIENT_WINDOW_BYTES = 8 * 1024 * 1024
"""The same in bytes of frames."""

CLIENT_ENTRY_BYTES = 64 * 1024
"""publish_many packs frames up to this size into one entry of the window."""

PREFETCH_RECORDS_MAX = 1024
"""Messages received ahead of the application; the original has no more in flight."""

PREFETCH_BYTES_MAX = 16 * 1024 * 1024
"""The same in bytes."""

POLLS_MAX = 256
"""POLLs of one round: more gain nothing."""

PASSED_RECORDS_MAX = 128
"""Records that are too old or too large and are passed between two looks at the clock: each costs 2 us."""

"""The requests of producers that number their records, and of their transactions; see ``netserver.kafka.apis``."""

from __future__ import annotations

from typing import Final

from .schema import Array, Field
from .tables import BOOL, INT16, INT32, INT32S, INT64, STRING, TEXT, Api, Key, by_topic, throttle

_PRODUCER: Final = (Field("transactional_id", STRING), Field("producer", INT64), Field("epoch", INT16))

_INIT_PRODUCER_ID: Final = Api(
    Key.INIT_PRODUCER_ID, 0, 4, 2,
    (
        Field("transactional_id", TEXT),
        Field("timeout_ms", INT32),
        Field("producer", INT64, 3, -1),
        Field("epoch", INT16, 3, -1),
    ),
    (throttle(), Field("error", INT16), Field("producer", INT64, 0, -1), Field("epoch", INT16, 0, -1)),
)  # fmt: skip

_ADD_PARTITIONS_TO_TXN: Final = Api(
    Key.ADD_PARTITIONS_TO_TXN, 0, 2, 3,
    (*_PRODUCER, Field("topics", Array((Field("name", STRING), Field("partitions", INT32S))))),
    (throttle(), Field("topics", by_topic(Field("error", INT16)))),
)  # fmt: skip

_ADD_OFFSETS_TO_TXN: Final = Api(
    Key.ADD_OFFSETS_TO_TXN, 0, 2, 3, (*_PRODUCER, Field("group", STRING)), (throttle(), Field("error", INT16))
)

_END_TXN: Final = Api(
    Key.END_TXN, 0, 2, 3, (*_PRODUCER, Field("commit", BOOL)), (throttle(), Field("error", INT16))
)  # fmt: skip

_TXN_OFFSET_COMMIT: Final = Api(
    Key.TXN_OFFSET_COMMIT, 0, 3, 3,
    (
        Field("transactional_id", STRING),
        Field("group", STRING),
        Field("producer", INT64),
        Field("epoch", INT16),
        Field("generation", INT32, 3, -1),
        Field("member", STRING, 3, ""),
        Field("instance", TEXT, 3),
        Field("topics", by_topic(Field("offset", INT64), Field("leader_epoch", INT32, 2, -1), Field("metadata", TEXT))),
    ),
    (throttle(), Field("topics", by_topic(Field("error", INT16)))),
)  # fmt: skip

TRANSACTION_APIS: Final = (
    _INIT_PRODUCER_ID, _ADD_PARTITIONS_TO_TXN, _ADD_OFFSETS_TO_TXN, _END_TXN, _TXN_OFFSET_COMMIT,
)  # fmt: skip

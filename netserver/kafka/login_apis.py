"""The requests by which a client says who it is; see ``netserver.kafka.apis``."""

from __future__ import annotations

from typing import Final

from .schema import Array, Field
from .tables import BYTES, INT16, INT64, STRING, TEXT, Api, Key

_SASL_HANDSHAKE: Final = Api(
    Key.SASL_HANDSHAKE, 1, 1, 2,
    (Field("mechanism", STRING),),
    (Field("error", INT16), Field("mechanisms", Array(STRING))),
)  # fmt: skip

_SASL_AUTHENTICATE: Final = Api(
    Key.SASL_AUTHENTICATE, 0, 1, 2,
    (Field("token", BYTES),),
    (
        Field("error", INT16),
        Field("message", TEXT),
        Field("token", BYTES, 0, b""),
        Field("lifetime_ms", INT64, 1, 0),
    ),
)  # fmt: skip

LOGIN_APIS: Final = (_SASL_HANDSHAKE, _SASL_AUTHENTICATE)

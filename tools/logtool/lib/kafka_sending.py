"""`publish --via kafka`: through aiokafka, with the extra `quintlog[kafka]`.

There is no client of Kafka's protocol of our own: those that people have are well kept, and records go here the way
that theirs go. It is idempotent: what is sent again after a broken connection is stored once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from netserver.client.tls import client_tls
from netserver.errors import ConnectionFailed, QuintlogError, Refused, TooLarge, Unknown
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import VALUE_BYTES_MAX

if TYPE_CHECKING:
    from tools.logtool.lib.splitting import Input

MILLISECONDS = 1000
_LOGIN = (
    "AuthenticationFailedError",
    "UnsupportedSaslMechanismError",
    "SaslAuthenticationFailed",
    "IllegalSaslStateError",
)
_SAID = {
    "TopicAuthorizationFailedError": "no right to publish to this topic",
    "UnknownTopicOrPartitionError": "there is no such topic, and none is made by publishing to it",
    "InvalidTopicError": "not a name that a topic can have there",
}
"""What errors mean that aiokafka gives no words to."""


class _Cause(logging.Handler):
    """Keeps why a connection failed: aiokafka says that to its log alone, and raises that it could not connect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps an exception that is told."""
        told = record.args if isinstance(record.args, tuple) else ()
        self.error = next((one for one in told if isinstance(one, BaseException)), self.error)


class KafkaSender:
    """A producer, to be entered. Every future ends with the errors that other clients have.

    Args:
        window: records on their way at once.
        give_up_s: so long a record is sent again, and a topic waited for.
        tls: words of `netserver.client.tls`.
        login: `NAME:KEY` of an identity for SASL PLAIN; empty: none.
    """

    def __init__(
        self, address: str, window: int, dial_timeout_s: float, give_up_s: float, tls: dict[str, Any], login: str
    ) -> None:
        try:
            import aiokafka  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            hint = "pip install 'quintlog[kafka]'"
            raise Failure(errors.USAGE, "no_aiokafka", "publish --via kafka needs aiokafka", hint) from None
        log = logging.getLogger("aiokafka")
        log.propagate = False  # what is wrong is told once, by us
        self._cause = _Cause()
        log.addHandler(self._cause)
        made = client_tls(**tls)
        name, colon, key = login.partition(":")
        if login and not (name and colon and key):
            raise Failure(errors.USAGE, "api_key", "Kafka's login is the name of an identity and its key: NAME:KEY")
        kind = ("SASL_" if login else "") + ("SSL" if made is not None else "PLAINTEXT")
        self._made = aiokafka
        self._settings: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": kind,
            "ssl_context": made.context() if made is not None else None,
            "sasl_plain_username": name or None,
            "sasl_plain_password": key or None,
            "enable_idempotence": True,
            "max_request_size": 2 * VALUE_BYTES_MAX,
            "request_timeout_ms": int(give_up_s * MILLISECONDS),
            "linger_ms": 1,
        }
        self._address = address
        self._dial_timeout_s = dial_timeout_s
        self._room = asyncio.Semaphore(window)

    async def __aenter__(self) -> Self:
        self._producer = self._made.AIOKafkaProducer(**self._settings)
        try:
            await asyncio.wait_for(self._producer.start(), self._dial_timeout_s)
        except (self._made.errors.KafkaError, TimeoutError, OSError) as error:
            await self._producer.stop()
            raise _connecting(self._cause.error or error, self._address) from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        stopping = asyncio.ensure_future(self._producer.stop())  # it would wait for what is under way
        await asyncio.wait({stopping}, timeout=None if kind is None else self._dial_timeout_s)

    async def send(self, topic: bytes, partition: int | None, record: Input) -> asyncio.Future[Any]:
        """Put a record on its way. Raises QuintlogError: it is refused at once."""
        await self._room.acquire()
        try:
            sent = await self._producer.send(topic.decode(), record.value, record.key or None, partition)
        except (self._made.errors.KafkaError, ValueError, AssertionError) as error:
            raise _refused(error, self._address) from error
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.add_done_callback(partial(self._settle, told))
        return told

    async def flush(self) -> None:
        """Wait until all are acknowledged."""
        await self._producer.flush()

    def _settle(self, told: asyncio.Future[Any], sent: asyncio.Future[Any]) -> None:
        self._room.release()
        error = None if sent.cancelled() else sent.exception()
        if told.done():
            return
        if sent.cancelled():
            told.cancel()
        elif error is not None:
            told.set_exception(_refused(error, self._address))
        else:
            told.set_result(None)


def _connecting(error: BaseException, address: str) -> QuintlogError:
    name = type(error).__name__
    if name in _LOGIN:
        return Refused(getattr(error, "errno", None) or name, "the login was refused: name or key is wrong")
    why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or name
    return ConnectionFailed(
        f"no Kafka at {address}: {why}; is that its listener, does it speak TLS, does it want a login?"
    )


def _refused(error: BaseException, address: str) -> QuintlogError:
    """An error of aiokafka, by its name, as our clients have it."""
    name = type(error).__name__
    if name in ("MessageSizeTooLargeError", "RecordTooLargeError"):
        return TooLarge(str(error), VALUE_BYTES_MAX)
    if name in ("KafkaConnectionError", "NodeNotReadyError", "RequestTimedOutError", "KafkaTimeoutError"):
        return Unknown(f"{address} does not answer ({name})")
    return Refused(getattr(error, "errno", None) or name, _SAID.get(name) or str(error) or name)

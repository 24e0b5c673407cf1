"""The TANK client's questions about topics and the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from netserver.client.base import ClientBase
from netserver.errors import Refused

from .calls import Calls
from .messages import (
    CreateCode,
    CreateTopicRequest,
    CreateTopicResponse,
    DiscoverPartitionsRequest,
    DiscoverPartitionsResponse,
    DiscoverTopicsRequest,
    DiscoverTopicsResponse,
    PartitionRange,
    ReloadCode,
    ReloadConfRequest,
    ReloadConfResponse,
    StatusRequest,
    StatusResponse,
    TopicEntry,
)
from .publisher import topic_bytes

DISCOVERY_TIMEOUT_S: Final = 4.0
CREATE_TIMEOUT_S: Final = 16.0
"""As the original's client."""

_CREATE_TEXTS: Final = {
    CreateCode.EXISTS: "the topic exists already",
    CreateCode.SYSTEM_ERROR: "the server could not make it",
    CreateCode.INVALID_CONFIG: "its configuration is not valid",
    CreateCode.READ_ONLY: "the server is read-only",
    CreateCode.INVALID_REQUEST: "a name is 1 to 64 of A-Za-z0-9_- and there is at least one partition",
}
_RELOAD_TEXTS: Final = {
    ReloadCode.NO_CONFIG_FILE: "the partition has no configuration file",
    ReloadCode.INVALID_CONFIG: "the configuration is not valid",
    ReloadCode.UNKNOWN_PARTITION: "no such partition",
    ReloadCode.UNKNOWN_TOPIC: "no such topic",
    ReloadCode.CLUSTER_MODE: "not in cluster mode",
}


class TopicRequests(ClientBase):
    """The part of the client that asks; ``Client`` adds publishing and reading."""

    _calls: Calls

    async def create_topic(
        self,
        topic: str | bytes,
        *,
        partitions: int = 1,
        config: Mapping[str, object] | str = "",
        exist_ok: bool = False,
    ) -> bool:
        """Make a topic.

        Args:
            config: TANK's keys, for example ``{"log.retention.secs": "7d"}``, or their text
            exist_ok: not an error if it is there already (with any number of partitions)

        Returns:
            whether it was made now

        Raises:
            Refused: with a CreateCode
            Unknown: the connection was lost before the answer (with ``exist_ok`` it is asked again)
        """
        self._check_open()
        if not isinstance(config, str):
            config = "".join(f"{key}={value}\n" for key, value in config.items())
        request = CreateTopicRequest(0, topic_bytes(topic), partitions, config.encode())

        def created(response: CreateTopicResponse) -> bool:
            if response.code and not (exist_ok and response.code == CreateCode.EXISTS):
                raise Refused(response.code, f"topic {topic!r}: {_text(_CREATE_TEXTS, response.code)}")
            return response.code == CreateCode.CREATED

        return await self._calls.ask(
            "create_topic",
            lambda number: request._replace(request_id=number),
            created,
            timeout_s=CREATE_TIMEOUT_S,
            is_repeatable=exist_ok,
        )

    async def discover(self, topic: str | bytes) -> tuple[PartitionRange, ...]:
        """First and last number of each partition, (0, 0) where there is nothing.

        Raises:
            Refused: no such topic
        """
        self._check_open()
        name = topic_bytes(topic)

        def found(response: DiscoverPartitionsResponse) -> tuple[PartitionRange, ...]:
            if not response.partitions:
                raise Refused("unknown_topic", f"no topic {topic!r}")
            return response.partitions

        return await self._calls.ask(
            "discover",
            lambda number: DiscoverPartitionsRequest(number, name),
            found,
            timeout_s=DISCOVERY_TIMEOUT_S,
        )

    async def topics(self) -> tuple[TopicEntry, ...]:
        """Names and numbers of partitions of all topics."""
        self._check_open()

        def found(response: DiscoverTopicsResponse) -> tuple[TopicEntry, ...]:
            return response.topics

        return await self._calls.ask("topics", DiscoverTopicsRequest, found, timeout_s=DISCOVERY_TIMEOUT_S)

    async def status(self) -> StatusResponse:
        """What the server says of itself."""
        self._check_open()

        def found(response: StatusResponse) -> StatusResponse:
            return response

        return await self._calls.ask("status", StatusRequest, found, timeout_s=DISCOVERY_TIMEOUT_S)

    async def reload_conf(self, topic: str | bytes, partition: int) -> None:
        """Have the server read a partition's configuration file again.

        Raises:
            Refused: with a ReloadCode
        """
        self._check_open()
        name = topic_bytes(topic)

        def reloaded(response: ReloadConfResponse) -> None:
            if response.code:
                raise Refused(response.code, f"topic {topic!r}: {_text(_RELOAD_TEXTS, response.code)}")

        await self._calls.ask(
            "reload_conf",
            lambda number: ReloadConfRequest(number, name, partition),
            reloaded,
            timeout_s=DISCOVERY_TIMEOUT_S,
        )


def _text(texts: Mapping[Any, str], code: int) -> str:
    return texts.get(code, "refused")

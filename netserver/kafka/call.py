"""One request on its way to its answer, as the functions that answer it see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from netserver.admin.slices import sliced

from .apis import response_form
from .schema import Encoded, Output, Structure, Values

if TYPE_CHECKING:
    from netserver.access.access import Visitor
    from netserver.shell.connection import Connection

    from .codec import Request
    from .listener_state import ListenerState
    from .login import Login

Item = TypeVar("Item")


class Call:
    """A request of a connection, whose body may name very many things: what goes through them is done in slices.

    Attributes:
        is_ending: no more is wanted from this connection: what waits is to be answered now.
        on_ending: called when that comes about.
        ends_by: why the connection is closed behind the answer; empty: it is not.
    """

    def __init__(self, shared: ListenerState, connection: Connection, login: Login, request: Request) -> None:
        self.shared = shared
        self.connection = connection
        self.login = login
        self.request = request
        self.body = request.body
        self.is_ending = False
        self.on_ending: Callable[[], object] = nothing
        self.ends_by = ""

    @property
    def visitor(self) -> Visitor:
        """Whose request it is."""
        return self.connection.visitor

    @cached_property
    def form(self) -> Structure:
        """That of the answer."""
        return response_form(self.request.head.key, self.request.head.version)

    def each(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """Go through some, with others having their turns in between."""
        return sliced(self.shared.log.slices, items)

    async def turn(self) -> None:
        """Let others have their turns, if this one's time is over."""
        async for _ in self.each((None,)):
            pass

    async def encoded(self, form: Structure, items: Iterable[Values]) -> Encoded:
        """An array of structures, encoded in slices."""
        out = Output()
        count = 0
        async for item in self.each(items):
            form.write(out, item)
            count += 1
        return Encoded(count, out)

    async def encoded_by_topic(self, topics: Iterable[tuple[str, Iterable[Values]]]) -> Encoded:
        """Partitions by topic, as many answers have them."""
        form = self.form.inner["topics"]
        out = Output()
        count = 0
        for name, partitions in topics:
            form.write(out, {"name": name, "partitions": await self.encoded(form.inner["partitions"], partitions)})
            count += 1
        return Encoded(count, out)

    def partitions(self) -> Iterator[tuple[str, Values]]:
        """Topic and partition, of a request that has partitions by topic."""
        for topic in self.body["topics"]:
            for partition in topic["partitions"]:
                yield topic["name"], partition


def nothing() -> None:
    """Nobody waits."""

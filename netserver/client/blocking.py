"""Any of the five clients for scripts without asyncio.

::

    import quintlog

    with quintlog.connect("figg", "127.0.0.1:8119") as client:
        client.publish("orders", b"one")                        # on disk when this returns
        for record in client.subscribe("orders", start=0):      # Ctrl-C ends it
            print(record.offset, record.value)

The client has the methods of the protocol's own client (``netserver.figg``, ``tank``, ``blipmq``, ``fujin``,
``reliably``), and so have its subscriptions, batches and messages: what is awaited there returns here when it is done,
what is ``async with`` or ``async for`` there is ``with`` or ``for`` here, and the futures of ``send`` are those of
``concurrent.futures``. Errors are the same. The client runs in an event loop on a thread of its own and may be used
from several threads. A record at a time costs a change of threads: ``batches()`` and ``publish_many`` are fast.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self

from netserver.errors import Closed

__all__ = ["PROTOCOLS", "Blocking", "Client", "connect"]

PROTOCOLS: Final = ("figg", "tank", "blipmq", "fujin", "reliably")
_ASYNCHRONOUS: Final = ("__aiter__", "__aenter__", "ack")
"""What an object has that must be used through the loop; all else is handed out as it is."""


class _Loop:
    """An event loop on a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="quintlog-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Waits for it; when the waiting is interrupted the work is cancelled."""
        if self._loop.is_closed() or os.getpid() != self._pid:
            work.close()
            if self._loop.is_closed():
                raise Closed("the client is closed")
            raise Closed("the client belongs to the process that was forked: a child has to connect anew")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def threadsafe(self, future: asyncio.Future[Any]) -> concurrent.futures.Future[Any]:
        """The same outcome for other threads (called in the loop)."""

        async def outcome() -> Any:
            return await future

        return asyncio.run_coroutine_threadsafe(outcome(), self._loop)

    def stop(self) -> None:
        """Ends the thread; nothing may be run after it."""
        if not self._loop.is_closed() and os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Blocking:
    """An asynchronous object whose methods, loops and ``with`` blocks wait."""

    def __init__(self, loop: _Loop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def __len__(self) -> int:
        return len(self._target)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._handed_out(value)

        def call(*args: Any, **options: Any) -> Any:
            return self._loop.run(self._call(value, args, options))

        call.__doc__ = value.__doc__
        return call

    def __enter__(self) -> Self:
        entered = self._loop.run(_awaited(self._target.__aenter__()))
        return self if entered is self._target else self._handed_out(entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._loop.run(_awaited(self._target.__aexit__(kind, error, trace)))  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self._target, "__aiter__"):
            yield from map(self._handed_out, self._target)
            return
        iterator = self._target.__aiter__()
        try:
            while True:
                try:
                    item = self._loop.run(_awaited(iterator.__anext__()))
                except StopAsyncIteration:
                    return
                yield self._handed_out(item)
        finally:
            if hasattr(iterator, "aclose"):
                with contextlib.suppress(Closed):  # the client was closed inside of the loop
                    self._loop.run(_awaited(iterator.aclose()))

    async def _call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = function(*map(_taken, args), **{name: _taken(value) for name, value in options.items()})
        if inspect.iscoroutine(result):
            result = await result
        elif hasattr(result, "__await__") and hasattr(result, "__aiter__"):
            await result  # a subscription: open when this returns
        return self._handed_out(result)

    def _handed_out(self, value: Any) -> Any:
        if asyncio.isfuture(value):
            return self._loop.threadsafe(value)
        if isinstance(value, list):
            return list(map(self._handed_out, value))
        if any(hasattr(value, name) for name in _ASYNCHRONOUS):
            return Blocking(self._loop, value)
        return value


class Client(Blocking):
    """A connected client; leaving ``with``, or ``close()``, waits for what was sent and ends the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        finally:
            self._loop.stop()

    def close(self) -> None:
        """End the client; a second call does nothing.

        Raises:
            Unknown: records that were sent and not acknowledged in time
        """
        try:
            with contextlib.suppress(Closed):
                self._loop.run(self._target.close())
        finally:
            self._loop.stop()


def connect(protocol: str, address: str | None = None, **options: Any) -> Client:
    """Connects at once to the server at ``address`` (``HOST[:PORT]``; without one the protocol's port on 127.0.0.1).

    Args:
        protocol: one of ``PROTOCOLS``
        options: those of the protocol's own ``connect``

    Raises:
        ConnectionFailed: nobody answers there
        ValueError: no such protocol, or not an address
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"no protocol {protocol!r}: expected one of {', '.join(PROTOCOLS)}")
    module = import_module(f"netserver.{protocol}")

    async def opened() -> Any:
        client = module.connect(**options) if address is None else module.connect(address, **options)
        return await client

    loop = _Loop()
    try:
        return Client(loop, loop.run(opened()))
    except BaseException:
        loop.stop()
        raise


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _taken(value: Any) -> Any:
    """An argument as the wrapped client knows it."""
    if isinstance(value, Blocking):
        return value._target
    if type(value) in (list, tuple):
        return type(value)(map(_taken, value))
    return value

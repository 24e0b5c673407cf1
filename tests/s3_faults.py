"""A proxy before a server of S3 that fails as networks and stores do: by chance, or as the next request is told to."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from aiohttp import ClientSession, web

CHANCES = {"busy": 0.03, "conflict": 0.02, "lost": 0.04, "twice": 0.03, "late": 0.03, "slow": 0.04}
"""How often what happens to a request; all but the first and the last only to writes."""
ANY = ("busy", "slow")
SLOW_S = 0.05
LATE_S = 0.3
DROPPED = {"content-length", "transfer-encoding", "content-encoding", "connection", "date", "server"}


class S3Faults:
    """Use `s3_faults`. Faults: ``busy`` 503, ``conflict`` 409 with nothing done, ``lost`` done without an answer,
    ``twice`` sent twice, ``late`` no answer and sent later, ``slow`` answered later.

    Attributes:
        script: faults of the next writes, "" for none; by chance when it is empty.
        happened: how often what happened.
        port: where it listens.
    """

    def __init__(self, server_port: int, random: Random, chances: dict[str, float]) -> None:
        self.script: list[str] = []
        self.happened: Counter[str] = Counter()
        self.chances = chances
        self.port = 0
        self._server = f"http://127.0.0.1:{server_port}"
        self._random = random
        self._late: set[asyncio.Task[web.Response]] = set()
        self._session: ClientSession
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Event
        self._listening = threading.Event()

    def run(self) -> None:
        """In a thread of its own, until `stop`."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    def listening(self) -> None:
        """Waits until it has a port."""
        assert self._listening.wait(30)

    def stop(self) -> None:
        """Sends what is late, and ends."""
        self._loop.call_soon_threadsafe(self._ended.set)

    def calm(self) -> None:
        """No more faults; returns when everything that is late has arrived."""
        self.chances = {}
        asyncio.run_coroutine_threadsafe(self._arrived(), self._loop).result(30)

    async def _arrived(self) -> None:
        await asyncio.gather(*self._late)

    async def _main(self) -> None:
        self._ended = asyncio.Event()
        async with ClientSession(auto_decompress=False) as self._session:
            runner = web.ServerRunner(
                web.Server(self._handle, access_log=None), handle_signals=False, shutdown_timeout=1
            )
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._listening.set()
            await self._ended.wait()
            await self._arrived()
            await runner.cleanup()

    def _fault(self, method: str) -> str:
        if method != "PUT" and method != "DELETE":
            names: tuple[str, ...] = ANY
        elif self.script:
            return self.script.pop(0)
        else:
            names = tuple(self.chances)
        draw = self._random.random()
        for name in names:
            draw -= self.chances.get(name, 0)
            if draw < 0:
                return name
        return ""

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        fault = self._fault(request.method)
        self.happened[fault or "as it should be"] += 1
        if fault == "busy":
            return _error(503, "SlowDown")
        if fault == "conflict":
            return _error(409, "ConditionalRequestConflict")
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        if fault == "late":
            self._late.add(asyncio.create_task(self._send_late(request, body)))
        if fault in ("lost", "twice"):
            await self._send(request, body)
        if fault in ("lost", "late"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await self._send(request, body)

    async def _send_late(self, request: web.BaseRequest, body: bytes) -> web.Response:
        await asyncio.sleep(LATE_S * self._random.random())
        return await self._send(request, body)

    async def _send(self, request: web.BaseRequest, body: bytes) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        async with self._session.request(
            request.method, self._server + request.raw_path, headers=headers, data=body
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in DROPPED}
            if request.method == "HEAD":  # without a body, and with the size of what it would be
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=kept, body=await answer.read())


def _error(status: int, code: str) -> web.Response:
    return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>")


@contextmanager
def s3_faults(server_port: int, random: Random, chances: dict[str, float] | None = None) -> Iterator[S3Faults]:
    """Runs one before a server; without `chances` nothing happens but what its script says."""
    proxy = S3Faults(server_port, random, chances or {})
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        proxy.listening()
        yield proxy
    finally:
        proxy.stop()
        thread.join()

"""Keeping a pin for as long as a bucket is read (`engine.remote.pins`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from types import TracebackType
from typing import Self

from engine.remote.limits import READ_ATTEMPTS, READ_PAUSE_S, RESTORE_PIN_MS
from engine.remote.pins import Pin, pin_object
from engine.remote.store import Denied, ObjectStore, StoreError, run
from engine.remote.writes import create


class PinKeeper:
    """Makes a pin at the beginning, the next one in time, and removes the last one at the end.

    Attributes:
        problem: why there is no pin: whoever may only read has none, and a collector does not know of them.
    """

    def __init__(
        self,
        store: ObjectStore,
        lineage: str,
        version: int,
        owner: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._pin = Pin(lineage, version, owner, RESTORE_PIN_MS)
        self._id = f"restore-{token_hex(8)}"
        self._number = 0
        self._name = ""
        self._clock = clock
        self._wait = wait
        self._renewed_at = 0.0
        self.problem = ""

    def __enter__(self) -> Self:
        try:
            self._renew()
        except Denied as error:
            self.problem = str(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove(self._name)

    def beat(self) -> None:
        """To be called again and again. Raises StoreError: what is read may go before the end."""
        if not self.problem and self._clock() - self._renewed_at > RESTORE_PIN_MS / 3000:
            before = self._name
            self._renew()
            self._remove(before)

    def _renew(self) -> None:
        self._number += 1
        name = pin_object(self._id, self._number)
        run(create(name, self._pin.pack(), READ_ATTEMPTS), self._store, self._pause)
        self._name, self._renewed_at = name, self._clock()

    def _pause(self, attempts: int) -> None:
        self._wait(READ_PAUSE_S * 2 ** (attempts - 1))

    def _remove(self, name: str) -> None:
        with suppress(StoreError):  # it ends by itself
            if name:
                self._store.delete(name)

"""Asking a store from a thread of a log that may be closed while an answer is outstanding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.remote.store import Denied, ObjectStore, Steps, T, Unclear, run
from engine.reports import logger
from engine.shipping.limits import BACKOFF_S, TOLD_FAILURES


class Stopped(Exception):
    """The log is being closed: nothing of it may be touched any more."""


class Asking:
    """A store as shipping asks it. Any thread.

    While a call waits for its answer nothing of the log is touched, so `stop` need not wait for it: the thread finds
    `Stopped` when it comes back.

    Attributes:
        problem: why the last request had no answer; empty: it had one.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._is_stopped = False
        self._users = 0
        """Threads that may touch the log."""
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self.problem = ""
        self.requests = 0
        self.failures = 0
        self._failed_in_a_row = 0

    def __getattr__(self, call: str) -> Callable[..., Any]:
        return lambda *arguments: self._ask(call, *arguments)

    def _ask(self, call: str, *arguments: Any) -> Any:
        self.requests += 1
        try:
            answer = self.away(lambda: getattr(self._store, call)(*arguments))
        except (Unclear, Denied) as error:
            self.failures += 1
            self.problem = str(error)
            self._failed_in_a_row += 1
            if self._failed_in_a_row == TOLD_FAILURES:
                logger.warning("object storage does not answer: %s; it is tried again and again", error)
            raise
        if self._failed_in_a_row >= TOLD_FAILURES:
            logger.info("object storage answers again, after %d attempts", self._failed_in_a_row)
        self.problem, self._failed_in_a_row = "", 0
        return answer

    def run(self, steps: Steps[T]) -> T:
        """Goes through steps. Raises what they raise, and Stopped."""
        return run(steps, self, self.pause)

    def certainly(self, first: Callable[[], Steps[T]], again: Callable[[], Steps[T]] | None = None) -> T:
        """Goes through steps until it is known what became of them: `first`, then, as often as needed, `again`.

        Raises what else they raise, and Stopped.
        """
        make, attempt = first, 0
        while True:
            try:
                return self.run(make())
            except (Unclear, Denied):
                make, attempt = again or first, attempt + 1
                self.pause(attempt)

    def pause(self, attempts: int) -> None:
        """Waits after so many failed attempts. Raises Stopped."""
        self.away(lambda: self._stopping.wait(BACKOFF_S[min(attempts, len(BACKOFF_S)) - 1]))

    def wait(self, seconds: float) -> bool:
        """Waits, or until `wake`; whether it was. One thread only. Raises Stopped."""
        is_woken = self.away(lambda: self._woken.wait(seconds))
        self._woken.clear()
        return is_woken

    def wake(self) -> None:
        """Ends a `wait`."""
        self._woken.set()

    @contextmanager
    def using(self) -> Iterator[None]:
        """What a thread does that may touch the log. Ends quietly when the log is closed."""
        try:
            self._enter()
            try:
                yield
            except Stopped:
                raise
            except BaseException:
                self._leave()
                raise
            self._leave()
        except Stopped:
            return

    def away(self, wait: Callable[[], T]) -> T:
        """Waits for something without touching the log meanwhile. Raises Stopped."""
        self._leave()
        try:
            return wait()
        finally:
            self._enter()

    def _enter(self) -> None:
        with self._changed:
            if self._is_stopped:
                raise Stopped
            self._users += 1

    def _leave(self) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends all threads that ask; returns when none touches the log any more."""
        with self._changed:
            self._is_stopped = True
            self._woken.set()
            self._stopping.set()
            self._changed.wait_for(lambda: not self._users)

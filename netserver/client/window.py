"""The window of a publishing client: what was accepted from the application and is not acknowledged yet.

The window is the one place that decides what goes over the wire next. A new connection rewinds it: everything in it
is unsent again, so it is resent in the first order before anything newer, and no publish can overtake the resend.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from netserver.errors import PublishRefused, QuintlogError, TlsFailed, Unknown, WrongServer

__all__ = ["Entry", "Window", "partly_sent"]


class Entry:
    """One frame, or several that were packed together, with the numbers ``first`` to ``last``.

    ``future`` becomes done when the acknowledgement is here; ``records`` is what :class:`~netserver.errors.Unknown`
    reports for it. ``frames`` are the bytes to send, the same again after a reconnect; nobody changes
    them.
    """

    __slots__ = ("count", "done", "first", "frames", "future", "last", "records", "sent", "size_bytes")

    def __init__(
        self,
        first: int,
        last: int,
        frames: bytes | bytearray,
        future: asyncio.Future[Any],
        records: Sequence[Any],
        count: int = 1,
    ) -> None:
        self.first = first
        self.last = last
        self.frames = frames
        self.future = future
        self.records = records
        self.count = count
        self.size_bytes = len(frames)
        self.sent = False
        self.done = False


class Window:
    """Entries in order, at most ``limit_records`` records and about ``limit_bytes`` bytes at a time.

    Room is granted in the order in which it was asked for, and only then is a number taken, so numbers go over the
    wire in rising order even with many publishing tasks. One entry larger than a limit goes alone.
    """

    def __init__(self, limit_records: int, limit_bytes: int) -> None:
        if limit_records < 1 or limit_bytes < 1:
            raise ValueError("the limits of a window are at least 1")
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
        self.records = 0  # with the places granted but not filled yet
        self.size_bytes = 0
        self.error: QuintlogError | None = None  # why nothing is accepted any more
        self.last_taken = -1  # last number of the entry that was handed to the connection last
        self._entries: deque[Entry] = deque()  # oldest first; the front one is never done
        self._unsent: deque[Entry] = deque()  # those to hand to the connection next
        self._added = 0  # entries ever added; those answered in one unbroken run from the first are _passed
        self._passed = 0
        self._askers: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._flushers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    # --- places

    def try_room(self, count: int, size_bytes: int) -> bool:
        """Take places for ``count`` records now, if there are enough and nobody waits."""
        if self.error is not None:
            raise self.error
        if self._askers or not self._fits(count, size_bytes):
            return False
        self.records += count
        self.size_bytes += size_bytes
        return True

    async def room(self, count: int, size_bytes: int) -> None:
        """Wait for places for ``count`` records of ``size_bytes`` together and take them; :meth:`add` must follow.

        Raises:
            QuintlogError: the client was closed or gave up meanwhile
        """
        if self.try_room(count, size_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asker = (count, size_bytes, granted)
        self._askers.append(asker)
        try:
            await granted
        except asyncio.CancelledError:
            if asker in self._askers:
                self._askers.remove(asker)
                self._grant()
            elif self.error is None:
                self.give_back(count, size_bytes)
            raise

    def give_back(self, count: int, size_bytes: int) -> None:
        """Return places that were taken and will not be filled."""
        self.records -= count
        self.size_bytes -= size_bytes
        self._grant()

    def _fits(self, count: int, size_bytes: int) -> bool:
        return self.records == 0 or (
            self.records + count <= self.limit_records and self.size_bytes + size_bytes <= self.limit_bytes
        )

    def _grant(self) -> None:
        while self._askers and self._fits(self._askers[0][0], self._askers[0][1]):
            count, size_bytes, granted = self._askers.popleft()
            if not granted.done():
                self.records += count
                self.size_bytes += size_bytes
                granted.set_result(None)

    # --- entries

    def add(self, entry: Entry) -> None:
        """Append an entry for which places were taken (for the same count and size)."""
        if self.error is not None:
            raise self.error
        self._entries.append(entry)
        self._unsent.append(entry)
        self._added += 1

    @property
    def unsent(self) -> bool:
        """Whether there is anything to hand to the connection."""
        return bool(self._unsent)

    def take_unsent(self, bytes_max: int) -> list[bytes | bytearray]:
        """The frames to send next: about ``bytes_max`` bytes, at least one entry if there is any."""
        frames: list[bytes | bytearray] = []
        unsent = self._unsent
        while unsent and bytes_max > 0:
            entry = unsent.popleft()
            entry.sent = True
            self.last_taken = entry.last
            if not entry.done:
                frames.append(entry.frames)
                bytes_max -= entry.size_bytes
        return frames

    def rewind(self) -> None:
        """A new connection: everything in the window is to be sent again, oldest first."""
        self._unsent = deque(entry for entry in self._entries if not entry.done)
        for entry in self._unsent:
            entry.sent = False

    def ack_through(self, number: int) -> int:
        """A cumulative acknowledgement: every sent entry whose last number is <= ``number`` is done.

        Returns:
            how many records that were
        """
        entries = self._entries
        records = 0
        for entry in entries:
            if entry.last > number or not entry.sent:
                break
            if not entry.done:
                records += entry.count
                self._finish(entry, None)
        if records:
            self._pass()
        return records

    def shrink(self, entry: Entry, count: int, frames: bytes | bytearray) -> None:
        """The first ``count`` records of an unsent entry are answered; ``frames`` are those of the others."""
        self.records -= count
        self.size_bytes -= entry.size_bytes - len(frames)
        entry.count -= count
        entry.records = entry.records[count:]
        entry.frames = frames
        entry.size_bytes = len(frames)
        self._pass()

    def settle(self, entry: Entry, result: object = None, error: QuintlogError | None = None) -> None:
        """One entry is answered on its own (protocols that acknowledge by number, in any order)."""
        if entry.done:
            return
        if error is not None:
            self._fail_future(entry, error)
        self._finish(entry, result)
        self._pass()

    def withdraw(self, entry: Entry) -> None:
        """Take an entry out without an outcome: its future is another entry's from now on."""
        if not entry.done:
            self._free(entry)
            self._pass()

    def _free(self, entry: Entry) -> None:
        entry.done = True
        self.records -= entry.count
        self.size_bytes -= entry.size_bytes

    def _finish(self, entry: Entry, result: object) -> None:
        self._free(entry)
        if not entry.future.done():
            entry.future.set_result(result)

    def _pass(self) -> None:
        """Drop the answered entries at the front, wake who waits for that or for room."""
        entries = self._entries
        while entries and entries[0].done:
            entries.popleft()
            self._passed += 1
        if self._askers:
            self._grant()
        while self._flushers and self._flushers[0][0] <= self._passed:
            flushed = self._flushers.popleft()[1]
            if not flushed.done():
                flushed.set_result(None)

    # --- end

    async def flushed(self) -> None:
        """Wait until everything that was added before this call is answered (errors of single entries: see futures).

        Raises:
            QuintlogError: the window failed meanwhile (:class:`Unknown` with the records)
        """
        if self.error is not None:
            raise self.error
        if self._passed < self._added:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushers.append((self._added, flushed))
            await flushed

    def outstanding(self) -> list[Any]:
        """The records of all entries that are not answered, oldest first."""
        return [record for entry in self._entries if not entry.done for record in entry.records]

    def fail(self, reason: QuintlogError) -> None:
        """No acknowledgement can come any more: what is in the window is unknown, and nothing more is accepted.

        The futures of the entries and those who wait in :meth:`flushed` get :class:`Unknown`, later callers ``reason``;
        when there never was a server of the protocol (:class:`WrongServer`, :class:`TlsFailed`), or one that takes
        nothing (:class:`PublishRefused`), all get that.
        """
        if self.error is not None:
            return
        self.error = reason
        lost = _unknown(self.outstanding(), reason) if self._entries else reason
        for entry in self._entries:
            if not entry.done:
                entry.done = True
                self._fail_future(entry, _unknown(entry.records, reason))
        self._entries.clear()
        self._unsent.clear()
        self.records = 0
        self.size_bytes = 0
        waiting = [(granted, reason) for _, _, granted in self._askers] + [(done, lost) for _, done in self._flushers]
        self._askers.clear()
        self._flushers.clear()
        for future, error in waiting:
            if not future.done():
                future.set_exception(error)

    @staticmethod
    def _fail_future(entry: Entry, error: QuintlogError) -> None:
        if not entry.future.done():
            entry.future.set_exception(error)
            entry.future.exception()  # the application may rely on flush() alone: no "never retrieved" in its log


NOTHING_STORED = (WrongServer, TlsFailed, PublishRefused)
"""Ends of a client before which nothing of its window was stored."""


def partly_sent(futures: Sequence[asyncio.Future[Any]], reason: QuintlogError) -> QuintlogError:
    """What to raise when a call ends early, because the window failed, that has put entries into it: that nothing of it
    was stored would be wrong. ``futures`` are those of its entries."""
    if not futures:
        return reason
    problems = [future.exception() for future in futures if future.done() and not future.cancelled()]
    if len(problems) == len(futures) and all(isinstance(problem, NOTHING_STORED) for problem in problems):
        return reason
    records = [record for problem in problems if isinstance(problem, Unknown) for record in problem.records]
    text = f"the first records were sent, {len(records)} of them were not acknowledged, the others were not sent"
    return Unknown(f"{text}: {reason}", records)


def _unknown(records: Sequence[Any], reason: QuintlogError) -> QuintlogError:
    if isinstance(reason, NOTHING_STORED):
        return reason
    return Unknown(f"{len(records)} records sent but not acknowledged: {reason}", records)

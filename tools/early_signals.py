"""Signal handling of the commands, from before their modules are loaded to the end of the process.

Python's own answers would be a traceback (SIGINT) or an end without any order. `quintlog` calls this before anything
else of a command, so it needs nothing but the standard library's smallest modules.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Kept:
    """Signals that came before the server could act on them; it does so when it can."""

    def __init__(self) -> None:
        self._came: list[signal.Signals] = []

    def keep(self) -> None:
        """From now on signals are kept; whoever asks for the end twice does not have to wait for it."""
        for number in HANDLED:
            signal.signal(number, self._take)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a server that is not ready has nothing to hand over

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.ask_for_end and number != signal.SIGHUP:
            os._exit(128 + number)
        self._came.append(signal.Signals(number))

    @property
    def ask_for_end(self) -> bool:
        """Whether one of them asks for the end."""
        return any(number != signal.SIGHUP for number in self._came)

    def taken(self) -> list[signal.Signals]:
        """Those that came, oldest first; whoever takes them does what they ask for."""
        came, self._came = self._came, []
        return came


KEPT = Kept()
"""Those of this process."""


class Ended(KeyboardInterrupt):
    """A signal other than SIGINT asks for the end, in the way of Ctrl-C.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def leave_at_once() -> None:
    """From now on a signal ends the process without a word: there is nothing to be put in order."""
    _answer({signal.SIGINT: _leave, signal.SIGHUP: _leave, signal.SIGTERM: _leave})


def interrupt() -> None:
    """From now on a signal is an exception in what the command does (`KeyboardInterrupt`, `Ended`), so that it cleans
    up behind itself."""
    _answer({signal.SIGINT: signal.default_int_handler, signal.SIGHUP: _end, signal.SIGTERM: _end})


def ignore() -> None:
    """All is done: a signal while the interpreter takes itself down, when it has taken back what handles signals, would
    end the process as if it were not, and hide its exit code."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def _answer(handlers: dict[signal.Signals, signal._HANDLER]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise Ended(number)

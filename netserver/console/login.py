"""Who is logged in to the console: by a token or key in a form, or by an address that counts once.

In memory only, as digests: a restart logs everybody out. A session stands for an identity, whose present rights count
at each request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netserver.console.limits import (
    CONSOLE_LOGIN_S,
    CONSOLE_LOGINS_MAX,
    CONSOLE_SESSION_S,
    CONSOLE_SESSIONS_MAX,
)

if TYPE_CHECKING:
    from netserver.access.access import Access
    from netserver.access.rights import Identity
    from netserver.admin.callers import Known


@dataclass(slots=True)
class Session:
    """Somebody who is logged in.

    Attributes:
        form_token: stands in every form of theirs, so that no other site can send one.
        ends_s: when, by the steady clock.
        told: what the last form has done, until a page has shown it.
    """

    known: Known
    form_token: str
    ends_s: float
    told: str = ""

    @property
    def identity(self) -> Identity:
        """Who they are."""
        return self.known.identity

    def sent(self, form_token: str) -> bool:
        """Whether a form is one of theirs."""
        return hmac.compare_digest(form_token.encode("utf-8", "replace"), self.form_token.encode())


class Logins:
    """Sessions, and login addresses that nobody has used yet.

    Args:
        clock_s: a clock that nobody sets.
    """

    def __init__(self, access: Access, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock_s = clock_s
        self._codes: dict[bytes, tuple[Known, float]] = {}  # by digest, the oldest first
        self._sessions: dict[bytes, Session] = {}

    def make_code(self, known: Known) -> str:
        """What a login address ends in; it counts once, and not for long."""
        code = secrets.token_urlsafe(32)
        self._codes[_digest(code)] = known, self._clock_s() + CONSOLE_LOGIN_S
        if len(self._codes) > CONSOLE_LOGINS_MAX:
            del self._codes[next(iter(self._codes))]
        return code

    def use_code(self, code: str) -> Known | None:
        """Who made a login address; None: it was used, is too old, or never was one."""
        known, ends_s = self._codes.pop(_digest(code), (None, 0.0))
        if known is None or self._clock_s() >= ends_s or known.current(self._access) is None:
            return None
        return known

    def begin(self, known: Known) -> str:
        """Somebody logs in; what their cookie holds."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = Session(known, secrets.token_urlsafe(32), self._clock_s() + CONSOLE_SESSION_S)
        if len(self._sessions) > CONSOLE_SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return cookie

    def session(self, cookie: str) -> Session | None:
        """Whose cookie it is, with their present rights; None: nobody's any more."""
        session = self._sessions.get(_digest(cookie))
        if session is None:
            return None
        current = session.known.current(self._access)
        if current is None or self._clock_s() >= session.ends_s:
            self.end(cookie)
            return None
        session.known = session.known._replace(identity=current)
        return session

    def end(self, cookie: str) -> None:
        """Somebody logs out."""
        self._sessions.pop(_digest(cookie), None)


def _digest(secret: str) -> bytes:
    """A look-up by it takes no time that tells something of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()

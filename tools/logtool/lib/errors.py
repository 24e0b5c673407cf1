"""Exit codes and error messages."""

from __future__ import annotations

import errno
import re

from engine.files.owners import refused_by

DONE = 0
FINDING = 1  # damage, a failed check
USAGE = 2
UNREACHABLE = 3  # no server there, or a file that cannot be opened
REFUSED = 4  # no or wrong token, read-only
NOT_FOUND = 5
CONFLICT = 6  # in use, exists already
NO_ROOM = 7  # no space, or a limit
TIMEOUT = 8
BUG = 70
INTERRUPTED = 130
TERMINATED = 143
CLOSED_PIPE = 141  # as a program that SIGPIPE ended

# Errors of the layers below, by class name: nothing has to be imported to look one up.
_KNOWN: dict[str, tuple[int, str, str]] = {
    # engine.errors
    "UnknownTopic": (NOT_FOUND, "unknown_topic", "`logtool topics list` shows what is there"),
    "UnknownPartition": (NOT_FOUND, "unknown_partition", "`logtool topics show TOPIC` names its partitions"),
    "UnknownSession": (NOT_FOUND, "unknown_session", "`logtool sessions list` shows what is there"),
    "UnknownSubscription": (NOT_FOUND, "unknown_subscription", "`logtool subscriptions list` shows what is there"),
    "TopicExists": (CONFLICT, "topic_exists", ""),
    "InvalidConfig": (USAGE, "invalid_setting", ""),
    "LogLocked": (CONFLICT, "in_use", "stop the process that holds the directory, or let it do the work"),
    "Corrupt": (FINDING, "corrupt", "`logtool verify DIR` checks a whole data directory"),
    "UnsupportedFormat": (UNREACHABLE, "unsupported_format", ""),
    "DataDirectoryError": (UNREACHABLE, "data_directory", ""),
    "DiskFull": (NO_ROOM, "no_space", ""),
    "ReadOnly": (REFUSED, "read_only", ""),
    "LimitReached": (NO_ROOM, "limit", ""),
    "TooLarge": (NO_ROOM, "too_large", ""),
    "OutOfRange": (NOT_FOUND, "out_of_range", ""),
    "NotStored": (NO_ROOM, "not_stored", ""),
    "EngineError": (UNREACHABLE, "engine", ""),
    # engine.remote
    "NoLog": (NOT_FOUND, "no_log", "--url names bucket and prefix of a log: s3://BUCKET/PREFIX"),
    "NoSuchVersion": (NOT_FOUND, "no_such_version", "`logtool remote status` names those that there are"),
    "Denied": (REFUSED, "denied", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role, have to allow it"),
    "Unclear": (UNREACHABLE, "unreachable", "is the store up? --endpoint names another one than Amazon's"),
    # netserver.errors
    "ConfigError": (UNREACHABLE, "config", ""),
    "ConnectionFailed": (
        UNREACHABLE,
        "unreachable",
        "is the server running? --via PROTOCOL=HOST:PORT names another one",
    ),
    "WrongServer": (
        UNREACHABLE,
        "wrong_server",
        "`logtool status` shows the server's listeners; --via PROTOCOL=HOST:PORT names one",
    ),
    "TlsFailed": (UNREACHABLE, "tls", ""),
    "Timeout": (TIMEOUT, "timeout", ""),
    "Refused": (REFUSED, "refused", ""),
    "Unknown": (UNREACHABLE, "unacknowledged", ""),
    "Closed": (UNREACHABLE, "closed", ""),
    "ProtocolError": (UNREACHABLE, "protocol", ""),
    "QuintlogError": (UNREACHABLE, "client", ""),
}


CLOSED_HINT = "it stops, or does not let this client in: its log says which; docs/access.md has the rights"


class Failure(Exception):
    """Ends the command: a code for scripts, a message and a hint for people, and the exit code.

    Attributes:
        exit_code: one of the constants of this module.
        code: short fixed word, part of the JSON error.
        hint: what to try; may be empty.
    """

    def __init__(self, exit_code: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code
        self.hint = hint


def tls_failure(text: str) -> Failure:
    """The failure of TLS whose text has the words that clients are given: here they are options."""
    text = re.sub(r'\b(ca|cert|key|server_name|fingerprint)=(?:"(\w+)")?', _as_option, text)
    return Failure(UNREACHABLE, "tls", text, "docs/tls.md has the options and their variables")


def _as_option(match: re.Match[str]) -> str:
    return " ".join(filter(None, (f"--{match[1].replace('_', '-')}", match[2])))


class Finding(Exception):
    """The command did its work, said what it found, and ends with exit code 1 (`FINDING`)."""


TOKEN_HINT = "; --server URL --token-file FILE goes through the server with a copy of admin.token"


def explain(error: BaseException) -> Failure | None:
    """The failure that an error of the layers below or of the system means; None when it is a bug."""
    if isinstance(error, Failure):
        return error
    for kind in type(error).__mro__:
        known = _KNOWN.get(kind.__name__)
        if known is not None and kind.__module__.startswith(("engine.", "netserver.")):
            if known[1] == "tls":
                return tls_failure(str(error))
            hint = CLOSED_HINT if known[1] == "unreachable" and "closed the connection" in str(error) else known[2]
            return Failure(known[0], known[1], str(error), hint)
    if isinstance(error, OSError) and error.errno is not None:
        named = f"{error.filename}: " if error.filename else ""
        message = f"{named}{(error.strerror or str(error)).lower()}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Failure(NO_ROOM, "no_space", message)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            whose = refused_by(error)
            return Failure(REFUSED, "permission", message, whose + TOKEN_HINT if whose else "")
        return Failure(UNREACHABLE, "cannot_open", message)
    return None

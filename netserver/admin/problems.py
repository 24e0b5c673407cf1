"""What errors of a request mean over HTTP."""

from __future__ import annotations

from typing import Final

from engine.cursors.documents import UnknownSubscription
from engine.errors import (
    DataDirectoryError,
    DiskFull,
    EngineError,
    InvalidConfig,
    LimitReached,
    NotStored,
    TooLarge,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from engine.sessions.types import UnknownSession
from netserver.access.access import Forbidden
from netserver.access.quotas import QuotaReached
from netserver.admin.access import NoKeyFile, UnknownKey
from netserver.admin.api import Conflict, NotFound
from netserver.admin.bodies import TooManyValues
from netserver.admin.globs import BadGlob
from netserver.admin.groups import UnknownGroup
from netserver.admin.places import NoPlace
from netserver.admin.upkeep import UpkeepFailed
from netserver.errors import ConfigError
from netserver.http.bodies import Busy
from netserver.http.errors import BadRequest

STATUS_OF_ERROR: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (BadRequest, 400, "bad_request"),
    (BadGlob, 400, "bad_request"),
    (Forbidden, 403, "forbidden"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (UnknownTopic, 404, "unknown_topic"),
    (UnknownPartition, 404, "unknown_partition"),
    (UnknownSession, 404, "unknown_session"),
    (UnknownSubscription, 404, "unknown_subscription"),
    (UnknownKey, 404, "unknown_key"),
    (UnknownGroup, 404, "unknown_group"),
    (NoKeyFile, 409, "no_key_file"),
    (ConfigError, 409, "key_file"),
    (TopicExists, 409, "topic_exists"),
    (QuotaReached, 429, "quota_reached"),
    (NoPlace, 503, "no_place"),
    (LimitReached, 409, "limit_reached"),
    (InvalidConfig, 400, "invalid_config"),
    (TooLarge, 413, "too_large"),
    (TooManyValues, 413, "too_large"),
    (Busy, 503, "busy"),
    (DiskFull, 507, "disk_full"),
    (NotStored, 503, "not_stored"),
    (DataDirectoryError, 503, "unavailable"),
    (OSError, 503, "unavailable"),
    (EngineError, 500, "engine_error"),
)


def problem_of(error: Exception) -> tuple[int, str, str, dict[str, str] | None] | None:
    """(status, code, text, headers) of an error; None: a defect of ours."""
    if isinstance(error, UpkeepFailed):
        return error.status, error.code, str(error), None
    for kind, status, code in STATUS_OF_ERROR:
        if isinstance(error, kind):
            headers = None
            if isinstance(error, QuotaReached | Busy | NoPlace):
                headers = {"Retry-After": str(error.retry_after_s)}
            return status, code, "; ".join([str(error), *getattr(error, "__notes__", [])]), headers
    return None

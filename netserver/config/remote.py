"""The section ``[remote]``: object storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from engine.config import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from engine.remote.limits import PIECE_BYTES_MAX
from netserver.config.settings import number_setting, text_setting
from netserver.limits import MIB

SCHEMES = ("s3", "gs", "az")


@dataclass(frozen=True)
class RemoteSection:
    """Where the log is stored beside its directory."""

    url: str = text_setting(
        "", "Bucket and prefix that the log is stored in, too, such as s3://bucket/prefix; empty: it is not."
    )
    endpoint: str = text_setting("", "URL of the store where it is not the provider's own.")
    region: str = text_setting("", "Region of the bucket; empty: as the environment says.")
    commit_interval_ms: int = number_setting(
        200, "duration", 20, MINUTE_MS,
        "Time between two commits, each of which costs two requests at least; 1s or more on R2 and GCS.",
    )  # fmt: skip
    piece_bytes: int = number_setting(
        4 * MIB, "bytes", 64 * 1024, PIECE_BYTES_MAX // 2,
        "Bytes of records that bring a commit forward, and of one object with records.",
    )  # fmt: skip
    grace_ms: int = number_setting(
        HOUR_MS, "duration", MINUTE_MS, 30 * DAY_MS,
        "How long objects stay that nothing needs any more, for who has begun to read them.",
    )  # fmt: skip
    timeout_ms: int = number_setting(
        10 * SECOND_MS, "duration", SECOND_MS, 5 * MINUTE_MS,
        "How long a request waits for its answer before its outcome is asked for.",
    )  # fmt: skip

    def problems(self) -> Iterator[str]:
        """What is wrong."""
        if not self.url:
            return
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
            yield f"[remote] url = {self.url[:200]!r}: expected {'://, '.join(SCHEMES)}:// with a bucket and a prefix"
        elif not parts.path.strip("/"):
            yield f"[remote] url = {self.url[:200]!r}: expected a prefix behind the bucket, of which all is this log's"
        if self.endpoint and urlsplit(self.endpoint).scheme not in ("http", "https"):
            yield f"[remote] endpoint = {self.endpoint[:200]!r}: expected http://HOST:PORT or https://HOST"
        if find_spec("obstore") is None:
            yield '[remote] url needs the extra "remote": pip install "quintlog[server,remote]"'

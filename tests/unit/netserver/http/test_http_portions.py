"""Large publishes over HTTP are taken apart in portions, so that nobody waits for all of one."""

from __future__ import annotations

import base64
import json

import pytest

from netserver.http import records_api
from netserver.http.limits import HTTP_BASE64_PIECE_CHARS, HTTP_PIECE_BYTES, HTTP_VALUE_WHOLE_BYTES
from netserver.http.splitting import Splitter, Value
from tests.unit.netserver.http.test_http_records import Records, with_records

pytestmark = pytest.mark.whole

JSON = {"Content-Type": "application/json"}


class Watched(Splitter):
    """Notes how much is split at a time."""

    most = 0

    def take(self, data: bytes) -> list[Value]:
        Watched.most = max(Watched.most, len(data))
        return super().take(data)


@pytest.mark.parametrize("split", ["lines", "nul"])
def test_the_smallest_records_are_split_in_portions(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a body that has come, all of which may be 400,000 records, no turn splits more than 64 KiB."""
    monkeypatch.setattr(records_api, "Splitter", Watched)
    count = 60_000
    end = b"\n" if split == "lines" else b"\0"
    body = b"".join(b"%d%b" % (number, end) for number in range(count))
    assert len(body) > 4 * HTTP_PIECE_BYTES

    async def test(call: Records) -> None:
        Watched.most = 0
        status, answer = await call.publish(f"t/records?split={split}", body, {})
        assert (status, answer["records"]) == (200, count)
        assert 0 < Watched.most <= HTTP_PIECE_BYTES
        last = await call.read(f"t/records?from={count - 2}")
        assert [int(one["value"]) for one in last] == [count - 3, count - 2, count - 1]

    with_records(test)


def test_a_large_value_in_base64() -> None:
    """It is decoded in pieces, and means what it means as a whole."""
    value = bytes(range(256)) * (HTTP_VALUE_WHOLE_BYTES // 256 + 1)
    text = base64.b64encode(value).decode()

    async def test(call: Records) -> None:
        good = json.dumps({"records": [{"value_base64": text}]}).encode()
        assert (await call.publish("t/records", good, JSON))[0] == 200
        (found,) = await call.read("t/records?format=raw", "application/octet-stream")
        assert found[4:] == value
        ended = text[: HTTP_BASE64_PIECE_CHARS - 2] + "==" + text[HTTP_BASE64_PIECE_CHARS:]
        for bad in (ended, text + "A", text[:-8] + "!" + text[-7:]):
            body = json.dumps({"records": [{"value_base64": bad}]}).encode()
            status, problem = await call.publish("t/records", body, JSON)
            assert (status, problem["detail"]) == (400, "value_base64 is not base64")
        both = json.dumps({"records": [{"value_base64": text, "value": "a"}]}).encode()
        assert (await call.publish("t/records", both, JSON))[0] == 400

    with_records(test)

"""A Kafka client that asks and does not read: what waits for it is bounded, and it gets all of it in the end."""

from __future__ import annotations

from netserver.app import Server
from netserver.kafka.apis import Key
from netserver.kafka.limits import ANSWER_BYTES_MAX
from netserver.limits import OUTPUT_STOP_BYTES
from netserver.shell.connection import Connection
from tests.echo import until
from tests.kafka_peer import Peer, fetch, records_of, result_of, with_server

ASKED = 60
MOST_BYTES = OUTPUT_STOP_BYTES + ANSWER_BYTES_MAX


def test_many_fetches_of_who_does_not_read_hold_little() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await peer.make("t") == 0
        await peer.produce("t", *[bytes(50_000)] * 15)
        (connection,) = server.listeners["kafka"].connections()
        assert isinstance(connection, Connection)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent: list[bytes] = []
        write, peer.writer.write = peer.writer.write, sent.append  # type: ignore[method-assign]
        for _ in range(ASKED):  # 45 MB of answers
            peer.send(Key.FETCH, fetch("t", (0, 1)))
        write(b"".join(sent))  # the server reads them all at once
        await until(lambda: "output" in connection.hold_reasons or connection.output_bytes() > MOST_BYTES)
        assert connection.output_bytes() <= MOST_BYTES
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(ASKED):
            found = result_of(await peer.answer())
            assert len(list(records_of(bytes(found["records"])))) == 15
            assert connection.output_bytes() <= MOST_BYTES

    with_server(test)

"""Order, errors and accounting of outstanding answers, with a real log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.errors import NotStored
from engine.segments.batches import COMMITTED, FAILED, WriteBatch
from netserver.app import Server
from netserver.limits import RELEASED_MAX
from netserver.shell.connection import Connection
from netserver.shell.outstanding import Outstanding, Released
from netserver.testing import running
from tests.echo import ALONE, Echo, run, until


def with_connection(test: Callable[[Server, Connection], Awaitable[None]]) -> None:
    async def main() -> None:
        echo = Echo()
        async with running(settings=ALONE, protocols={"echo": echo}) as server:
            address = server.addresses["echo"]
            _, writer = await asyncio.open_connection(address.host, address.port)
            await until(lambda: echo.sessions)
            await test(server, echo.sessions[0].connection)
            writer.close()
            await until(lambda: not server.shell.connections)
            assert server.shell.pressure.total == 0

    run("uvloop", main())


def write_batches(server: Server, count: int) -> list[WriteBatch]:
    """Write batches of as many partitions, which the committer does not have; ``settle`` decides their outcome."""
    log = server.log
    return [
        WriteBatch(log.partition(log.catalog.get_or_create(b"t%d" % number)), bytearray(4096), 1)
        for number in range(count)
    ]


def settle(write_batch: WriteBatch, error: NotStored | None = None) -> None:
    write_batch.state = COMMITTED if error is None else FAILED
    write_batch.error = error


def test_answers_leave_in_the_order_of_arrival() -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls: list[Released] = []
        outstanding = Outstanding(connection, calls.append, server.log.slices)
        first, second, third = write_batches(server, 3)
        outstanding.add(first, "first", 10)
        outstanding.add(second, "second", 20, 2)
        outstanding.add_done("pong")
        outstanding.add(third, "third", 40)
        assert (len(outstanding), outstanding.pending_bytes, connection.charged) == (4, 70, 70)
        settle(second)
        outstanding.round_done()
        assert calls == []
        settle(first)
        outstanding.round_done()
        assert calls == [[("first", None), ("second", None), ("pong", None)]]
        assert (len(outstanding), outstanding.pending_bytes, connection.charged) == (1, 40, 40)
        settle(third)
        outstanding.round_done()
        assert calls[1:] == [[("third", None)]]
        assert connection.counters.records_published == 4
        assert connection.counters.published_bytes == 70

    with_connection(test)


def test_failures_carry_their_error_and_are_not_counted_as_stored() -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls: list[Released] = []
        outstanding = Outstanding(connection, calls.append, server.log.slices)
        first, second = write_batches(server, 2)
        outstanding.add(first, "first", 10)
        refusal = ValueError("refused")
        outstanding.add_done("refused", refusal)
        outstanding.add(second, "second", 20)
        problem = NotStored("no room")
        settle(first, problem)
        settle(second)
        outstanding.round_done()
        assert calls == [[("first", problem), ("refused", refusal), ("second", None)]]
        assert connection.counters.records_published == 1

    with_connection(test)


def test_an_answer_that_waits_for_nothing_leaves_at_once() -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls: list[Released] = []
        outstanding = Outstanding(connection, calls.append, server.log.slices)
        outstanding.add_done("pong")
        assert calls == [[("pong", None)]]

    with_connection(test)


def test_a_write_batch_that_is_finished_when_it_is_added() -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls: list[Released] = []
        outstanding = Outstanding(connection, calls.append, server.log.slices)
        first, second = write_batches(server, 2)
        settle(first)
        settle(second)
        outstanding.add(first, "first", 1)
        outstanding.add(second, "second", 1)
        assert calls == []  # not within add(): the session is in the middle of something
        await until(lambda: calls)
        assert calls == [[("first", None), ("second", None)]]

    with_connection(test)


def test_an_error_of_the_session_ends_its_connection_only() -> None:
    async def test(server: Server, connection: Connection) -> None:
        outstanding = Outstanding(connection, lambda _released: 1 // 0, server.log.slices)
        (write_batch,) = write_batches(server, 1)
        outstanding.add(write_batch, "first", 1)
        settle(write_batch)
        outstanding.round_done()
        assert connection.closed
        assert connection.counters.session_errors == 1

    with_connection(test)


def test_after_the_connection_is_gone_the_bytes_are_discharged_without_an_answer() -> None:
    async def test(server: Server, connection: Connection) -> None:
        calls: list[Released] = []
        outstanding = Outstanding(connection, calls.append, server.log.slices)
        (write_batch,) = write_batches(server, 1)
        outstanding.add(write_batch, "first", 100)
        connection.abort()
        await until(lambda: not server.shell.connections)
        assert server.shell.pressure.total == 100
        settle(write_batch)
        outstanding.round_done()
        assert server.shell.pressure.total == 0
        assert calls == []

    with_connection(test)


def test_many_answers_take_one_look_a_turn_whatever_rounds_end_meanwhile() -> None:
    async def test(server: Server, connection: Connection) -> None:
        looks: list[int] = []
        released: list[object] = []

        def turn() -> None:
            looks.append(0)
            if len(released) < len(tokens):
                connection.loop.call_soon(turn)

        def take(answers: Released) -> None:
            looks[-1] += 1
            released.extend(token for token, _ in answers)
            outstanding.round_done()  # another round has ended

        outstanding = Outstanding(connection, take, server.log.slices)
        (write_batch,) = write_batches(server, 1)
        tokens = list(range(8 * RELEASED_MAX))
        for token in tokens:
            outstanding.add(write_batch, token, 1)
        settle(write_batch)
        turn()
        outstanding.round_done()
        await until(lambda: len(released) == len(tokens))
        assert released == tokens
        assert max(looks) == 1
        assert sum(looks) == 8

    with_connection(test)

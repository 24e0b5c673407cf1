"""A UDP socket that sends and receives in bulk: what leaves together, where a piece is cut, what is refused."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from netserver.quic.udp import SOL_UDP, UDP_GRO, Datagram, UdpSocket

CUT = b"c" * 1200
"""As long as QUIC's datagrams usually are."""


def bound() -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    udp.setblocking(False)
    return udp


@pytest.fixture
def plain() -> Iterator[socket.socket]:
    """A socket as the operating system gives it."""
    with bound() as udp:
        udp.settimeout(5)
        yield udp


@pytest.fixture
def ours() -> Iterator[UdpSocket]:
    """The socket under test."""
    with bound() as udp:
        yield UdpSocket(udp)


class Recording:
    """Stands in for a socket; fails as it is told to.

    Args:
        failures: of the next calls, in order; None is success.
    """

    def __init__(self, *failures: OSError | None) -> None:
        self.calls: list[tuple[list[bytes], Any]] = []
        self._failures = list(failures)

    def send(self, data: bytes) -> None:
        self._call([data], None)

    def sendto(self, data: bytes, address: Any) -> None:
        self._call([data], address)

    def sendmsg(self, pieces: list[bytes], control: list[Any], flags: int = 0, address: Any = None) -> None:
        assert control
        self._call(pieces, address)

    def _call(self, pieces: list[bytes], address: Any) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        self.calls.append((pieces, address))

    @property
    def sizes(self) -> list[list[int]]:
        return [[len(piece) for piece in pieces] for pieces, _ in self.calls]


def recorded(ours: UdpSocket, *failures: OSError | None) -> Recording:
    recording = Recording(*failures)
    ours.socket = recording  # type: ignore[assignment]
    return recording


def to(address: Any, *datagrams: bytes) -> list[Datagram]:
    return [(data, address) for data in datagrams]


def test_what_is_sent_arrives_as_it_was(ours: UdpSocket, plain: socket.socket) -> None:
    sent = [CUT, CUT, b"short", b"", b"longer than that", CUT, b"end"]
    assert ours.send(to(plain.getsockname(), *sent)) == len(sent)
    assert [plain.recv(2000) for _ in sent] == sent


def test_what_arrives_in_one_piece_is_cut(ours: UdpSocket) -> None:
    with bound() as other:
        sender = UdpSocket(other)
        sent = [bytes([number]) * 1200 for number in range(40)] + [b"end"]
        assert sender.send(to(ours.socket.getsockname(), *sent)) == len(sent)
        came: list[bytes] = []
        while len(came) < len(sent):
            datagrams, address = ours.receive()
            assert address == other.getsockname()
            came += datagrams
        assert came == sent
    with pytest.raises(BlockingIOError):
        ours.receive()


def test_a_connected_socket_needs_no_address(ours: UdpSocket, plain: socket.socket) -> None:
    ours.socket.connect(plain.getsockname())
    assert ours.send(to(None, CUT, CUT, b"end")) == 3
    assert [plain.recv(2000) for _ in range(3)] == [CUT, CUT, b"end"]


def test_nobody_there_is_told_on_a_connected_socket(ours: UdpSocket) -> None:
    with bound() as gone:
        address = gone.getsockname()
    ours.socket.connect(address)
    ours.send(to(None, CUT))
    with pytest.raises(ConnectionRefusedError):
        ours.send(to(None, CUT))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([1200], [[1200]]),
        ([1200, 1200, 1200], [[1200, 1200, 1200]]),
        ([1200, 1200, 30, 1200], [[1200, 1200, 30], [1200]]),
        ([30, 1200, 1200], [[30], [1200, 1200]]),
        ([1200, 0, 1200], [[1200], [0], [1200]]),
        ([0, 0], [[0], [0]]),
        ([100] * 65, [[100] * 64, [100]]),  # 64 segments at most
        ([1400] * 47, [[1400] * 46, [1400]]),  # 65,507 bytes at most
    ],
)
def test_what_leaves_together(ours: UdpSocket, lengths: list[int], expected: list[list[int]]) -> None:
    recording = recorded(ours)
    assert ours.send(to(("::1", 1), *(bytes(length) for length in lengths))) == len(lengths)
    assert recording.sizes == expected


def test_each_address_gets_its_own(ours: UdpSocket) -> None:
    recording = recorded(ours)
    ours.send([*to(("::1", 1), CUT, CUT), *to(("::1", 2), CUT)])
    assert recording.calls == [([CUT, CUT], ("::1", 1)), ([CUT], ("::1", 2))]


def test_where_the_kernel_cannot_cut_each_is_sent_alone(ours: UdpSocket) -> None:
    recording = recorded(ours, OSError(errno.EIO, "no checksum offload"))
    assert ours.send(to(("::1", 1), CUT, CUT)) == 2
    assert ours.send(to(("::1", 1), CUT, CUT)) == 2
    assert recording.sizes == [[1200]] * 4


def test_a_full_socket_tells_how_far_it_got(ours: UdpSocket) -> None:
    recording = recorded(ours, None, BlockingIOError(), BlockingIOError())
    datagrams = to(("::1", 1), CUT, CUT, b"end", CUT)
    assert ours.send(datagrams) == 3
    assert ours.send(datagrams) == 0
    assert recording.sizes == [[1200, 1200, 3]]


def test_what_the_network_refuses_is_lost(ours: UdpSocket) -> None:
    recording = recorded(ours, OSError(errno.ENETUNREACH, "no way"))
    assert ours.send([*to(("::1", 1), CUT), *to(("::1", 2), b"y")]) == 2
    assert recording.sizes == [[1]]


@pytest.mark.parametrize("step", [0, 5, 9])
def test_a_piece_of_one_datagram_is_not_cut(ours: UdpSocket, step: int) -> None:
    class One:
        def recvmsg_into(self, buffers: tuple[bytearray], control_bytes: int) -> tuple[int, list[Any], int, Any]:
            buffers[0][:5] = b"12345"
            return 5, [(SOL_UDP, UDP_GRO, step.to_bytes(4, "little")), (SOL_UDP, UDP_GRO, b"")], 0, "somebody"

    ours.socket = One()  # type: ignore[assignment]
    assert ours.receive() == ([b"12345"], "somebody")

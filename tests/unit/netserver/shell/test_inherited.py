"""Listening sockets that others have opened: which are taken, and what is done with the rest."""

from __future__ import annotations

import os
import socket

import pytest

from netserver.errors import ConfigError
from netserver.shell.inherited import HANDED_OVER, Inherited, handed_over

TCP = (socket.AF_INET, socket.SOCK_STREAM)


def inherited(*names: str) -> tuple[Inherited, list[int]]:
    """One socket for each name, as the server before hands them over, and their ports."""
    made = [(name, socket.create_server(("127.0.0.1", 0))) for name in names]
    ports = [one.getsockname()[1] for _, one in made]
    environment = {HANDED_OVER: handed_over(made)}
    found = Inherited()
    found.find(environment)
    assert environment == {}
    for _, one in made:
        one.detach()
    return found, ports


def test_a_listener_takes_what_has_its_address(caplog: pytest.LogCaptureFixture) -> None:
    found, (figg, other) = inherited("figg", "quintlog.socket")
    assert found.take("figg", *TCP, ("0.0.0.0", figg)) is None, "who may reach it is said by the configuration"
    assert found.take("figg", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", figg)) is None
    assert found.take("tank", *TCP, ("127.0.0.1", 0)) is None, "any port: only one that is named for it"
    assert found.take("tank", *TCP, ("127.0.0.1", 1)) is None
    taken = [found.take("figg", *TCP, ("127.0.0.1", 0)), found.take("tank", *TCP, ("127.0.0.1", other))]
    for one, port in zip(taken, (figg, other), strict=True):
        assert one is not None
        assert one.getsockname()[1] == port
        assert not one.get_inheritable()
        one.close()
    found.close_rest()
    assert caplog.messages == []


def test_the_rest_is_closed_and_told(caplog: pytest.LogCaptureFixture) -> None:
    found, (port,) = inherited("figg")
    found.close_rest()
    assert f"at ('127.0.0.1', {port}) is not used" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_descriptors_of_another_process_are_left_alone() -> None:
    environment = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "figg"}
    found = Inherited()
    found.find(environment)
    assert environment == {}
    assert found.take("figg", *TCP, ("127.0.0.1", 0)) is None


@pytest.mark.parametrize("fd", ["0x", "1000000"])
def test_what_is_no_socket_is_told(fd: str) -> None:
    with pytest.raises(ConfigError, match=f"descriptor {fd}, which was to be a listening socket"):
        Inherited().find({HANDED_OVER: f"figg={fd}"})

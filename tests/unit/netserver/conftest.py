"""Servers of their own are few here, and not what is tried."""

from tests.forked_servers import forked_servers

__all__ = ["forked_servers"]

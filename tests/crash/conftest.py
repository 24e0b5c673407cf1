"""Fixtures of others that these tests use, too. Dozens of servers are killed here, so they start quickly."""

from tests.forked_servers import forked_servers
from tests.unit.conftest import logtool

__all__ = ["forked_servers", "logtool"]

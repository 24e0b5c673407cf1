"""The server is not what is tried here, so it starts quickly."""

from tests.forked_servers import forked_servers

__all__ = ["forked_servers"]

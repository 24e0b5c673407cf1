"""Names that the admin HTTP server and its callers agree on."""

from __future__ import annotations

from typing import Final

SERVER_FILE: Final = "server.json"
"""In the data directory: process and addresses of its server, see ``netserver.app``."""
TOKEN_FILE: Final = "admin.token"
"""Beside it: what opens the admin API."""
DIRECTORY_PATH: Final = "/directory"
"""Tells which directory the server has, see ``engine.files.lock.identity_of``."""
DIRECTORY_HEADER: Final = "Quintlog-Directory"
"""Of a request: the directory that is meant. A server of another one refuses it."""

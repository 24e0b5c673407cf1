"""The server and the clients of its five protocols."""

import engine  # noqa: F401 - whether its modules, and those of this package, are loaded from source

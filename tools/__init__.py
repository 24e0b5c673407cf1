"""The commands, and the source and sink of Spark."""

import engine  # noqa: F401 - whether its modules, and those of this package, are loaded from source

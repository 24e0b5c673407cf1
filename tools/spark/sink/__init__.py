"""Writing: rows staged by the executors, committed exactly once by the driver."""

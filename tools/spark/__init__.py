"""The log in Spark: a data source that reads segment files, without the server, and programs that use it."""

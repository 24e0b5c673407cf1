"""Spark finds the format ``quintlog`` by this module's name; an error in here would break every source in Python."""

from tools.spark.source import QuintlogSource as DefaultSource

__all__ = ["DefaultSource"]

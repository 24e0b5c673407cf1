"""Spark finds the format ``quintlog`` by this module's name; an error in here would break every source in Python.

So nothing of ours is imported before the format is used: an interpreter without our libraries, or one where another
project's packages have the names of ours, is told by an error of this format alone.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``spark.read.format("quintlog").load("DIR")``: hands everything to `tools.spark.source.data_source`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "quintlog"

    def schema(self) -> str:
        """All columns."""
        return str(self._source().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For batch queries that write."""
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For streaming queries that write."""
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> DataSource:
        """Raises ImportError: this interpreter cannot be used; the text names it."""
        try:
            import quintlog

            quintlog.check_packages()
            from tools.spark.source.data_source import QuintlogSource
        except ImportError as error:
            chosen = os.environ.get("PYSPARK_PYTHON")
            why = f"PYSPARK_PYTHON is {chosen}" if chosen else "PYSPARK_PYTHON is not set"
            text = f"{error}. Spark's Python is {sys.executable} ({why}); it needs Quintlog with what [spark] installs"
            raise ImportError(text) from error
        return QuintlogSource(self.options)

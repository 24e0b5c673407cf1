"""Fixtures of the unit tests that these tests use, too."""

from tests.unit.conftest import logtool

__all__ = ["logtool"]

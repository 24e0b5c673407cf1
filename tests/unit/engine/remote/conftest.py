"""A bucket with a whole log in it, made once for all tests of this folder."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from tests.packed_bucket import Packed, make_packed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Nobody may change it."""
    return make_packed(tmp_path_factory.mktemp("packed") / "data")


@pytest.fixture
def packed(made: Packed) -> Packed:
    """A copy that a test may damage."""
    return replace(made, store=deepcopy(made.store))

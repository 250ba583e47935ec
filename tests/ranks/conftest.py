"""Fixtures of the tests of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.simt.gpu import Gpu


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """Have kernels run on an emulated GPU, of its own in each file."""
    from tests.simt.gpu import emulated_gpu  # needs the dialect

    with emulated_gpu() as made:
        yield made

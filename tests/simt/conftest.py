"""An emulated GPU for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.simt.gpu import Gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """Run kernels on an emulated GPU, a new one for each test."""
    from tests.simt.gpu import emulated_gpu  # needs the dialect

    with emulated_gpu() as made:
        yield made

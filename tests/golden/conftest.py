"""``--update-golden`` writes the kept sources anew; their diff is what to review."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what tests/golden keeps from what is generated now",
    )

"""The pipeline page shows what the folder really prints."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "build_pipeline.py"


def test_the_pipeline_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main(["--check"]) == 0, capsys.readouterr().out

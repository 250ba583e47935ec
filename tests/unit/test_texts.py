"""Tools that hold generated text: archives are compared, a run is collected."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.texts.compare import category, compare, kernels

KERNEL = """@jit
def kernel(a, i):
    # where it comes from
    a[uint32(i)] = (a[i] + 1)
"""
EQUAL = """@jit
def kernel(a, i):

    a[uint32(i)] = a[i] + 1
"""
UNCAST = """@jit
def kernel(a, i):
    a[i] = a[uint32(i)] + 1
"""
OTHER = """@jit
def kernel(a, i):
    a[i] = uint32(a[i]) + 1
"""


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (KERNEL, "bytes"),
        (EQUAL, "tree"),
        (UNCAST, "tree but casts"),
        (OTHER, "differs"),
        ("", "only old"),
    ],
)
def test_categories(new: str, expected: str) -> None:
    assert category(KERNEL, new, trees=True) == expected
    if new and new != KERNEL:
        assert category(KERNEL, new, trees=False) == "differs"


def test_kernels_of_a_module() -> None:
    text = f'"""A plan."""\n\nimport numba\n\n\n{KERNEL}\n\nOTHER = 1\n'
    found = kernels(text)
    assert list(found) == ["module", "kernel"]
    assert found["kernel"] == KERNEL.rstrip()
    assert "import numba" in found["module"]
    assert "OTHER = 1" in found["module"]
    refused = '"""Refused: PlanError."""'
    assert kernels(refused) == {"module": refused}


def write(path: Path, texts: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return path


def test_comparing_archives(tmp_path: Path) -> None:
    old = write(tmp_path / "a.zip", dict.fromkeys(("1", "2", "3", "4"), KERNEL))
    new = {"1": EQUAL, "2": OTHER, "3": OTHER, "5": KERNEL}
    found = compare(old, write(tmp_path / "b.zip", new), trees=True, show=9)
    counts = {"tree": 1, "differs": 2, "only old": 1, "only new": 1}
    assert found.counts == counts
    assert not found.is_same
    # The same pair of texts is shown once.
    heads = [diff.splitlines()[0] for diff in found.diffs]
    assert heads == ["--- old/2:kernel", "--- old/4:kernel", "--- old/5:kernel"]
    assert compare(old, old, trees=False, show=9).is_same


def test_the_texts_of_a_run_are_the_same_in_any_number_of_processes(
    tmp_path: Path,
) -> None:
    kept = []
    for processes in ("0", "2"):
        file = tmp_path / f"{processes}.txt"
        command = [sys.executable, "-m", "pytest", "-q", f"--texts={file}"]
        command += ["-n", processes, "tests/golden/test_golden.py"]
        command += ["-k", "search_k2_cpu"]
        environment = os.environ | {"PYTHONHASHSEED": processes}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
        kept.append(file.read_text())
    assert kept[0] == kept[1]
    [line] = kept[0].splitlines()
    assert line.endswith(" cpu unseen+closest+settle")

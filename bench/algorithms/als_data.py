"""The ratings of MovieLens, as sparse matrices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bench.record import ROOT

#: Name -> file, delimiter, lines of header, first id of users and items.
FILES: dict[str, tuple[str, str, int]] = {
    "ml-latest-small": ("small/ml-latest-small/ratings.csv.gz", ",", 1),
    "ml-100k": ("restricted/ml-100k/u.data.gz", "\t", 0),
    "ml-1m": ("restricted/ml-1m/ratings.csv.gz", ",", 1),
}


def data_folder() -> str:
    """Return where the data is."""
    return os.environ.get("FEATGRAPH_DATA", str(ROOT.parent / "shared" / "data"))


def movielens(folder: str, name: str) -> Any:
    """Return users x items, float64; ids as they first occur in order."""
    path, delimiter, header = FILES[name]
    table = np.loadtxt(
        Path(folder) / path, delimiter=delimiter, skiprows=header, usecols=(0, 1, 2)
    )
    users, items = (np.unique(table[:, c], return_inverse=True)[1] for c in (0, 1))
    return sparse.csr_matrix((table[:, 2], (users, items)))

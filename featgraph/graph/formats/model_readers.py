"""Read networks of discrete variables from text files, plain or gzipped."""

from __future__ import annotations

import os
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.factor_graph import FactorGraph
from featgraph.graph.formats.bif import parse_bif
from featgraph.graph.formats.text import read_text
from featgraph.graph.formats.uai import (
    parse_uai,
    parse_uai_evidence,
    parse_uai_marginals,
)

__all__ = ["read_bif", "read_uai", "read_uai_evidence", "read_uai_marginals"]

_Path: TypeAlias = str | os.PathLike[str]


def read_bif(path: _Path, *, max_bytes: int | None = None) -> FactorGraph:
    """Read a Bayesian network in the Bayesian Interchange Format.

    Factor i is the conditional distribution of variable i, its own axis first, then
    those of its parents. Properties and comments are skipped.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        Most bytes of text, and of what a table may make us allocate. Default: 100 times
        the file, at least 64 MiB.

    Returns
    -------
    FactorGraph

    Raises
    ------
    FileFormatError
        Malformed or truncated; a distribution that is missing or does not sum to one
        (within 1e-2, for files are rounded); a network with a cycle.
    OSError
        The file is missing or may not be read.

    References
    ----------
    F. Cozman, "The Interchange Format for Bayesian Networks", 1998.
    """
    return parse_bif(read_text(path, max_bytes))


def read_uai(path: _Path, *, max_bytes: int | None = None) -> FactorGraph:
    """Read a model of the UAI inference competitions, MARKOV or BAYES.

    Variables are named "0", "1", ..., and so are their states.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    FactorGraph

    Raises
    ------
    FileFormatError
        Malformed, truncated, or with words behind the last table.
    OSError
        The file is missing or may not be read.
    """
    return parse_uai(read_text(path, max_bytes))


def read_uai_evidence(path: _Path, *, max_bytes: int | None = None) -> dict[int, int]:
    """Read the evidence that goes with a UAI model: pairs of variable and state.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    dict of int to int
        State by variable, as `FactorGraph.given` takes it; empty without evidence.

    Raises
    ------
    FileFormatError
        Malformed, truncated, or with more than one set of evidence.
    OSError
        The file is missing or may not be read.
    """
    return parse_uai_evidence(read_text(path, max_bytes))


def read_uai_marginals(
    path: _Path, *, max_bytes: int | None = None
) -> list[NDArray[np.float64]]:
    """Read a solution of a UAI marginal task (``.MAR``).

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    list of ndarray of float64
        The probabilities of the states of each variable.

    Raises
    ------
    FileFormatError
        Malformed or truncated.
    OSError
        The file is missing or may not be read.
    """
    return parse_uai_marginals(read_text(path, max_bytes))

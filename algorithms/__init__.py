"""Algorithms written in featgraph, one file each.

Functions are imported from their modules. Estimators can be imported from here too, and
are loaded when first asked for: scikit-learn takes a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featgraph.algorithms.estimators import LabelPropagation
    from featgraph.algorithms.recommenders import AlternatingLeastSquares

__all__ = ["AlternatingLeastSquares", "LabelPropagation"]

_MODULES = {
    "AlternatingLeastSquares": "recommenders",
    "LabelPropagation": "estimators",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"featgraph.algorithms.{_MODULES[name]}"), name
    )

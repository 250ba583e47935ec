"""Algorithms written in featgraph, one file each, and estimators.

Each function takes a graph in any of the forms that `featgraph.as_graph` reads, and
returns a result with its arrays, the record of the run, and the names of the vertices.
A module holds the same function with its foldmaps and a verifier:
``from featgraph.algorithms.pagerank import verify_pagerank``.

Modules are imported at the first use: scikit-learn takes a second. Begin reading with
`bfs`. Modules with a leading underscore are shared: `_result` has the base class of
results, `_checks` and `_vertices` convert arguments, `_verify` has checks of answers.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featgraph.algorithms.als import als
    from featgraph.algorithms.belief_propagation import belief_propagation
    from featgraph.algorithms.betweenness_centrality import betweenness_centrality
    from featgraph.algorithms.bfs import bfs
    from featgraph.algorithms.circuit_simulation import circuit_simulation
    from featgraph.algorithms.closeness_centrality import closeness_centrality
    from featgraph.algorithms.clustering import clustering
    from featgraph.algorithms.connected_components import connected_components
    from featgraph.algorithms.eigenvector_centrality import eigenvector_centrality
    from featgraph.algorithms.estimators import LabelPropagation
    from featgraph.algorithms.factor_propagation import factor_propagation
    from featgraph.algorithms.gradient_factorization import gradient_factorization
    from featgraph.algorithms.heat_simulation import heat_simulation
    from featgraph.algorithms.hits import hits
    from featgraph.algorithms.k_core import k_core
    from featgraph.algorithms.k_truss import k_truss
    from featgraph.algorithms.katz_centrality import katz_centrality
    from featgraph.algorithms.label_propagation import label_propagation
    from featgraph.algorithms.label_set_propagation import label_set_propagation
    from featgraph.algorithms.multi_manifold_ranking import multi_manifold_ranking
    from featgraph.algorithms.multimodal_learning import multimodal_learning
    from featgraph.algorithms.neural_network import neural_network
    from featgraph.algorithms.pagerank import pagerank
    from featgraph.algorithms.pagerank_push import pagerank_push
    from featgraph.algorithms.recommenders import (
        AlternatingLeastSquares,
        MatrixFactorization,
    )
    from featgraph.algorithms.sgd import sgd_factorization
    from featgraph.algorithms.sssp import sssp
    from featgraph.algorithms.sswp import sswp
    from featgraph.algorithms.strong_components import strongly_connected_components
    from featgraph.algorithms.triangle_count import triangle_count

__all__ = [
    "AlternatingLeastSquares",
    "LabelPropagation",
    "MatrixFactorization",
    "als",
    "belief_propagation",
    "betweenness_centrality",
    "bfs",
    "circuit_simulation",
    "closeness_centrality",
    "clustering",
    "connected_components",
    "eigenvector_centrality",
    "factor_propagation",
    "gradient_factorization",
    "heat_simulation",
    "hits",
    "k_core",
    "k_truss",
    "katz_centrality",
    "label_propagation",
    "label_set_propagation",
    "multi_manifold_ranking",
    "multimodal_learning",
    "neural_network",
    "pagerank",
    "pagerank_push",
    "sgd_factorization",
    "sssp",
    "sswp",
    "strongly_connected_components",
    "triangle_count",
]

#: Public name -> its module, if the module has another name.
_MODULES = {
    "AlternatingLeastSquares": "recommenders",
    "LabelPropagation": "estimators",
    "MatrixFactorization": "recommenders",
    "sgd_factorization": "sgd",
    "strongly_connected_components": "strong_components",
}


class _Package(ModuleType):
    """A package whose functions take precedence over modules of the same name.

    After importing a submodule, the import system binds it to its name in the package.
    ``featgraph.algorithms.pagerank`` would be the function before, and the module after
    such an import.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return list(__all__)

"""featgraph: graph-based learning from small functions, folded into one kernel."""

from pathlib import Path as _Path

from featgraph import distributed
from featgraph.base.arguments import checked_arguments
from featgraph.base.config import VERSION as _VERSION
from featgraph.base.config import config
from featgraph.base.errors import (
    ArgumentError,
    CacheWarning,
    CheckpointWarning,
    CompilationWarning,
    ConvergenceWarning,
    DeviceError,
    DeviceMemoryError,
    DistributedError,
    DistributedWarning,
    DivergenceError,
    FeatGraphError,
    FileFormatError,
    GraphInputError,
    KernelFaultError,
    PlanError,
    RankMismatchError,
    StaleSourcesWarning,
    StateError,
    UserFunctionError,
    WorkerLostError,
)
from featgraph.base.files import read_arrays, write_arrays
from featgraph.dynamic.events import TemporalEdges, read_temporal
from featgraph.dynamic.graph import DynamicGraph
from featgraph.dynamic.trim import trim
from featgraph.graph import (
    FactorGraph,
    Graph,
    GraphLike,
    as_graph,
    read_bif,
    read_dimacs,
    read_edge_list,
    read_graph,
    read_labels,
    read_matrix_market,
    read_ratings,
    read_uai,
    read_uai_evidence,
    read_uai_marginals,
)
from featgraph.graph.inputs.given import GivenArray, Held
from featgraph.graph.inputs.take import given_array
from featgraph.program.active import ActiveSet
from featgraph.program.combines import combine
from featgraph.program.functions import edge, gather, reduce, triangle, vertex
from featgraph.program.operations import (
    all_features,
    any_feature,
    argmax,
    atomic,
    broadcast,
    collaborative,
    dot,
    feature_max,
    feature_min,
    feature_sum,
    inverse,
    is_twin,
    log_normalize,
    logsumexp,
    matvec,
    norm,
    normalize,
    nothing,
    outer,
    reverse,
    softmax,
    solve,
)
from featgraph.program.state import State, edge_property, vertex_property
from featgraph.program.view import View
from featgraph.ranks.moving.distribute import distribute
from featgraph.runtime.checkpoints.folder import newest_checkpoint
from featgraph.runtime.checkpoints.public import (
    Checkpoints,
    algorithm,
    checkpointed,
    rounds,
)
from featgraph.runtime.iterate import iterate
from featgraph.runtime.loops.near_far import NearFar
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.stopping import StoppingTest, above, below
from featgraph.runtime.superstep.foldmap import (
    FoldMap,
    edgemap,
    foldmap,
    trianglemap,
    vertexmap,
)

# Installed, algorithms/ lies in this folder. In a checkout it lies beside it, and
# Python that is started there finds this folder first, whatever is installed.
_here = _Path(__file__).parent
_is_checkout = (_here.parent / "pyproject.toml").exists()
if _is_checkout and not (_here / "algorithms" / "__init__.py").exists():
    __path__.append(str(_here.parent))

__version__ = _VERSION

__all__ = [
    "ActiveSet",
    "ArgumentError",
    "CacheWarning",
    "CheckpointWarning",
    "Checkpoints",
    "CompilationWarning",
    "ConvergenceWarning",
    "DeviceError",
    "DeviceMemoryError",
    "DistributedError",
    "DistributedWarning",
    "DivergenceError",
    "DynamicGraph",
    "FactorGraph",
    "FeatGraphError",
    "FileFormatError",
    "FoldMap",
    "GivenArray",
    "Graph",
    "GraphInputError",
    "GraphLike",
    "Held",
    "KernelFaultError",
    "NearFar",
    "PlanError",
    "RankMismatchError",
    "Run",
    "StaleSourcesWarning",
    "State",
    "StateError",
    "StoppingTest",
    "TemporalEdges",
    "UserFunctionError",
    "View",
    "WorkerLostError",
    "above",
    "algorithm",
    "all_features",
    "any_feature",
    "argmax",
    "as_graph",
    "atomic",
    "below",
    "broadcast",
    "checked_arguments",
    "checkpointed",
    "collaborative",
    "combine",
    "config",
    "distribute",
    "distributed",
    "dot",
    "edge",
    "edge_property",
    "edgemap",
    "feature_max",
    "feature_min",
    "feature_sum",
    "foldmap",
    "gather",
    "given_array",
    "inverse",
    "is_twin",
    "iterate",
    "log_normalize",
    "logsumexp",
    "matvec",
    "newest_checkpoint",
    "norm",
    "normalize",
    "nothing",
    "outer",
    "read_arrays",
    "read_bif",
    "read_dimacs",
    "read_edge_list",
    "read_graph",
    "read_labels",
    "read_matrix_market",
    "read_ratings",
    "read_temporal",
    "read_uai",
    "read_uai_evidence",
    "read_uai_marginals",
    "reduce",
    "reverse",
    "rounds",
    "softmax",
    "solve",
    "triangle",
    "trianglemap",
    "trim",
    "vertex",
    "vertex_property",
    "vertexmap",
    "write_arrays",
]

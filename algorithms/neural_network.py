"""Neural network: the outputs of neurons on any graph, some of which are inputs.

With ``x(v)`` the output of neuron v, ``w(u, v)`` the weight of an edge, of any sign,
and ``b(v)`` a bias::

    x'(v) = tanh(b(v) + sum over edges u -> v of w(u, v) x(u))

for all neurons that are not inputs; inputs keep their values. On a graph without
cycles, such as layers, the number of supersteps is the depth of the network. On other
graphs the run iterates to a fixpoint, as in a Hopfield network with continuous neurons.
It converges if the sum of the absolute weights into each neuron is less than one, since
the slope of tanh is at most one; otherwise it may oscillate for ever.

State: ``output`` (V, k), a column for each input pattern; ``bias`` and ``is_input``
(V,); ``weight``, one per given edge. A superstep reads E * k values along edges, and
computes V * k outputs. Neurons whose sources have all changed by epsilon or less are
skipped.

The benchmark NN of F. Khorasani, K. Vora, R. Gupta, L. N. Bhuyan, "CuSha:
Vertex-Centric Graph Processing on GPUs", HPDC, 2014, and of F. Khorasani, R. Gupta,
L. N. Bhuyan, "Scalable SIMD-Efficient Graph Processing on GPUs", PACT, 2015. There x is
tanh of the weighted sum alone, as a synthetic workload with arbitrary weights. Bias and
inputs are added here: a contraction without them converges to zero.
J. J. Hopfield, "Neurons with Graded Response Have Collective Computational Properties
Like Those of Two-State Neurons", PNAS 81, 1984.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import (
    require_number,
    signed_weights,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import at_living, columns_property, held_values

__all__ = ["NeuralNetworkResult", "neural_network", "verify_neural_network"]

Array = npt.NDArray[Any]


@fg.gather(into="excitation", combine="sum")
def excited(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the output of the source, times the weight."""
    return d.weight[e] * d.output[u, f]


@fg.vertex
def fire(f, v, d):  # type: ignore[no-untyped-def]
    """Store tanh of the excitation and the bias; announce changes above epsilon."""
    if d.is_input[v]:
        return False
    new = math.tanh(d.excitation[v, f] + d.bias[v])
    d.output_next[v, f] = new
    return fg.any_feature(abs(new - d.output[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of an output."""
    return abs(d.output_next[v, f] - d.output[v, f])


step = fg.foldmap(excited, fire)
step_with_residual = fg.foldmap(excited, fire, largest_change)


@dataclass(frozen=True, eq=False, kw_only=True)
class NeuralNetworkResult(Result):
    """Result of `neural_network`.

    Attributes
    ----------
    outputs : ndarray of shape (V,) or (V, k)
        The given values at inputs; between -1 and 1 at other neurons.
    """

    outputs: Array = answer()

    residual_name: ClassVar[str] = "largest change of an output"


@fg.algorithm()
def neural_network(
    graph: fg.GraphLike,
    inputs: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    bias: npt.ArrayLike = 0.0,
    epsilon: float = 1e-6,
    max_supersteps: int = 1000,
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> NeuralNetworkResult:
    """Compute the outputs of the neurons of a graph, for one or many input patterns.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Neurons excite others along ``u -> v``, in both directions if the graph is
        undirected.
    inputs : array_like of shape (V,) or (V, k)
        Outputs of input neurons; nan for all other neurons, in all columns of a row.
    weights : array_like of shape (E,), optional
        Of any sign, in the order in which the edges were given. Default: the weights of
        the graph, or one.
    bias : float, or array_like of shape (V,), optional
        The constant input of a neuron.
    epsilon : float, optional
        A change of an output by this or less is dropped and not announced.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    history : bool, optional
        Record the largest change of each superstep, in a pass over the vertices.
    dtype : dtype, optional
        float32 or float64.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    NeuralNetworkResult
        Outputs, residuals, and the record of the run.

    Raises
    ------
    GraphInputError
        If inputs, bias or weights do not fit the graph or are not finite.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached: the network oscillates, or converges too slowly.

    Notes
    -----
    After convergence, one more superstep would change no output by more than `epsilon`.
    Initial outputs are zero, except for inputs. Bitwise repeatable in pull direction,
    which has no atomics.

    Examples
    --------
    Two inputs, a hidden neuron that is their difference, and an output.

    >>> import numpy as np
    >>> import featgraph as fg
    >>> from featgraph.algorithms import neural_network
    >>> layers = fg.Graph.from_edges([0, 1, 2], [2, 2, 3])
    >>> inputs = [[1.0, 0.5], [0.5, 0.5], [np.nan] * 2, [np.nan] * 2]
    >>> neural_network(layers, inputs, weights=[2, -2, 4]).outputs[3].round(3)
    array([0.995, 0.   ], dtype=float32)
    """
    graph = fg.as_graph(graph)
    require_number("epsilon", epsilon, epsilon >= 0, "0 or more")
    given, real = fg.given_array(inputs, where="inputs"), checked_reals(dtype)
    known = held_values(graph, "inputs", given)
    rows = known.values.astype(real, "inputs")
    properties = {"weight": fg.edge_property(real.type(1))}
    properties |= weight_properties(graph, weights, real, signed_weights)
    state = fg.State(
        graph,
        output=columns_property(graph, rows, known.width, real, iterated=True),
        bias=fg.vertex_property(_bias(graph, bias).astype(real, "bias").values),
        is_input=fg.vertex_property(known.is_held.values, copy=False),
        epsilon=float(epsilon),
        **properties,
    )
    recorded = iterate_recorded(
        step_with_residual if history else step,
        state,
        history=history,
        max_supersteps=max_supersteps,
        **options,
    )
    outputs = state.view("output")
    if given.ndim < 2:
        outputs = outputs.reshape(len(outputs))
    return NeuralNetworkResult.of(graph, *recorded, outputs=outputs)


def _bias(graph: fg.Graph, bias: npt.ArrayLike) -> fg.GivenArray:
    given, count = fg.given_array(bias, np.float64, "bias"), graph.vertex_count
    given = at_living(graph, given)
    if given.shape not in {(), (count,)} or given.first_not_finite() is not None:
        raise fg.GraphInputError(
            "bias is one finite number, or one for each vertex",
            got=f"shape {given.shape}",
            expected=f"() or ({count},), finite",
        )
    return given


def verify_neural_network(
    graph: fg.GraphLike,
    outputs: npt.ArrayLike,
    inputs: npt.ArrayLike,
    *,
    weights: npt.ArrayLike | None = None,
    bias: npt.ArrayLike = 0.0,
    epsilon: float = 1e-6,
) -> None:
    """Check the answer of a converged run, in float64.

    * Inputs have the given values.
    * All other outputs are between -1 and 1.
    * One more superstep changes no other output by more than `epsilon`, up to rounding.

    Parameters
    ----------
    graph, inputs, weights, bias, epsilon
        As passed to `neural_network`.
    outputs : array_like of shape (V,) or (V, k)
        The answer of `neural_network`.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph)
    given = fg.given_array(outputs, where="outputs").on_host()
    x = given.astype(np.float64).reshape(graph.vertex_count, -1)
    known = held_values(graph, "inputs", inputs)
    is_input, kept = known.is_held.on_host(), known.values.astype(given.dtype)
    require(~is_input | (x == kept.on_host()).all(axis=1), "an input was changed")
    require(is_input | (np.abs(x) <= 1).all(axis=1), "an output beyond one")
    if graph.living is not None:  # dead vertices have the output 0, with any bias
        is_input = is_input | ~graph.living
    edges = edges_of(graph)
    of_edges = signed_weights(graph, weights).on_host()[edges.given][:, None]
    excitation = sums_over_in_edges(edges, of_edges * x[edges.sources], len(x))
    size = sums_over_in_edges(edges, np.abs(of_edges * x[edges.sources]), len(x))
    b = np.broadcast_to(_bias(graph, bias).on_host(), (len(x),))[:, None]
    degree = np.bincount(edges.targets, minlength=len(x))[:, None]
    # A sum of n rounded terms is off by at most n roundings of the sum of their sizes.
    rounding = 2 * np.finfo(given.dtype).eps * ((degree + 4) * (size + np.abs(b)) + 4)
    settled = np.abs(np.tanh(excitation + b) - x) <= epsilon + rounding
    require(is_input | settled.all(axis=1), "one more superstep moves it")

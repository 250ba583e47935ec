"""``featgraph demo``: label propagation on handwritten digits, beside scikit-learn.

`demo` prints a table and saves a picture. The last part of the file loads the digits,
runs both methods, and measures accuracies.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms.label_propagation import (
    LabelPropagationResult,
    label_propagation,
)
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FeatGraphError
from featgraph.cli.results import check_output

__all__ = [
    "CURVE_SEEDS",
    "CURVE_SHARES",
    "Digits",
    "Outcome",
    "accuracy",
    "accuracy_curves",
    "demo",
    "label_spreading",
    "load_graph_of_digits",
    "propagate",
    "split",
]


def demo(options: argparse.Namespace) -> None:
    """Run label propagation on digits, compare it with scikit-learn, and draw it.

    Parameters
    ----------
    options : argparse.Namespace
        labelled, neighbors, seed, target, output.

    Raises
    ------
    FeatGraphError
        If scikit-learn or matplotlib is missing, or no image would be labelled.
    OSError
        If the picture cannot be written.
    """
    _require_packages()
    check_output(options.output)
    started = time.perf_counter()
    digits = load_graph_of_digits(options.neighbors)
    labels = split(digits.truth, options.labelled, options.seed)
    _print_task(digits, labels, options)

    _, first_s = _timed(lambda: propagate(digits, labels, options.target))
    result, seconds = _timed(lambda: propagate(digits, labels, options.target))
    ours = Outcome(
        f"featgraph label_propagation ({result.run.target})",
        accuracy(result.labels, digits.truth, labels),
        result.run.supersteps,
        seconds,
    )
    theirs = label_spreading(digits, labels, same_graph=True)
    their_own = label_spreading(digits, labels, same_graph=False)
    _print_outcomes([ours, theirs, their_own])
    print(f"\nFirst call, with compiling or loading the kernel: {first_s:.2f} s")

    output = Path(options.output)
    figure = draw(
        digits, labels, result, [ours, theirs], accuracy_curves(digits, options.target)
    )
    figure.savefig(output, dpi=110)
    print(f"Picture: {output} (all in {time.perf_counter() - started:.1f} s)")


def _require_packages() -> None:
    missing = [
        package
        for module, package in (("sklearn", "scikit-learn"), ("matplotlib",) * 2)
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise FeatGraphError(
            f"the demo needs {' and '.join(missing)}",
            fix='pip install "featgraph[demo]"',
        )


def _timed(call: Callable[[], LabelPropagationResult]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _print_task(digits: Digits, labels: Array, options: argparse.Namespace) -> None:
    graph = digits.graph
    print(
        f"Task:  {len(labels):,} handwritten digits (8 x 8 pixels, 10 classes), "
        f"{int((labels >= 0).sum())} of them labelled (seed {options.seed})\n"
        f"Graph: {digits.neighbors} nearest neighbors, made symmetric: "
        f"{graph.vertex_count:,} vertices, {graph.edge_count:,} edges\n"
    )


def _print_outcomes(outcomes: list[Outcome]) -> None:
    width = max(len(outcome.name) for outcome in outcomes)
    print(f"{'':{width}}  accuracy  rounds  seconds")
    for o in outcomes:
        print(f"{o.name:{width}}  {o.accuracy:8.2%}  {o.rounds:6,}  {o.seconds:7.3f}")


_WRONG = "#d40000"
_INK = "#222222"
_FAINT = "#8a8a8a"


def draw(
    digits: Digits,
    labels: Array,
    result: LabelPropagationResult,
    outcomes: list[Outcome],
    curves: dict[str, list[list[float]]],
) -> Any:
    """Draw the graph, samples of every class, and accuracy by number of labels.

    Parameters
    ----------
    digits : Digits
        Images, truth and graph.
    labels : ndarray of int64, shape (V,)
        The given labels; -1 for none.
    result : LabelPropagationResult
        The result.
    outcomes : list of Outcome
        Results of featgraph and scikit-learn on this split.
    curves : dict
        Method -> accuracies by share (outer) and seed (inner).

    Returns
    -------
    matplotlib.figure.Figure
        The figure, neither shown nor saved.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 10, "axes.titlelocation": "left", "axes.edgecolor": _FAINT}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(17, 10), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.09)
        left, right = figure.subfigures(1, 2, width_ratios=[1.12, 1])
        top, bottom = right.subfigures(2, 1, height_ratios=[1.55, 1])
        _draw_graph(left.subplots(), digits, labels, result)
        _draw_samples(top, digits, labels, result)
        curve, activity = bottom.subplots(1, 2)
        _draw_curves(curve, curves)
        _draw_activity(activity, result.run)
        ours, theirs = outcomes
        figure.suptitle(
            f"{int((labels >= 0).sum())} of {len(labels):,} handwritten digits are "
            f"labelled: label propagation gets {ours.accuracy:.1%} of the others right "
            f"(scikit-learn's LabelSpreading on the same graph: {theirs.accuracy:.1%})",
            fontsize=14,
            color=_INK,
            x=0.01,
            ha="left",
        )
    plt.close(figure)  # removes it from pyplot's list only
    return figure


def _colors() -> Any:
    import matplotlib

    return matplotlib.colormaps["tab10"](np.arange(10))


def _draw_graph(
    axes: Any, digits: Digits, labels: Array, result: LabelPropagationResult
) -> None:
    """Draw every image as a dot near its neighbors, in the color of its prediction."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke
    from sklearn.manifold import TSNE

    place = TSNE(init="pca", random_state=0).fit_transform(digits.points)
    ends = place[np.stack([digits.graph.sources, digits.graph.targets], axis=1)]
    axes.add_collection(LineCollection(ends, colors="#00000018", linewidths=0.4))
    colors = _colors()
    seeds = labels >= 0
    wrong = (result.labels != digits.truth) & ~seeds
    sure = result.distributions.max(axis=1)
    axes.scatter(
        *place[~seeds].T,
        c=colors[result.labels[~seeds]],
        s=9,
        alpha=0.35 + 0.65 * sure[~seeds],
        linewidths=0,
        zorder=2,
    )
    axes.scatter(
        *place[wrong].T,
        s=46,
        facecolors="none",
        edgecolors=_WRONG,
        linewidths=1,
        zorder=3,
    )
    axes.scatter(
        *place[seeds].T,
        c=colors[labels[seeds]],
        s=95,
        marker="*",
        edgecolors="black",
        linewidths=0.8,
        zorder=4,
    )
    for digit in range(10):
        axes.annotate(
            str(digit),
            np.median(place[digits.truth == digit], axis=0),
            fontsize=24,
            weight="bold",
            color=colors[digit] * [0.7, 0.7, 0.7, 1],
            ha="center",
            va="center",
            zorder=5,
            path_effects=[withStroke(linewidth=4, foreground="white", alpha=0.85)],
        )
    star: dict[str, Any] = {"marker": "*", "linestyle": "", "markeredgecolor": "black"}
    ring: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none"}
    axes.legend(
        handles=[
            Line2D([], [], color="#bbbbbb", markersize=11, label="labelled", **star),
            Line2D(
                [], [], marker="o", linestyle="", color=_FAINT, label="predicted class"
            ),
            Line2D(
                [],
                [],
                markeredgecolor=_WRONG,
                label=f"wrong ({int(wrong.sum())} of {int((~seeds).sum()):,})",
                **ring,
            ),
        ],
        loc="lower left",
        frameon=False,
    )
    axes.set_title(
        f"The graph: {digits.neighbors} nearest neighbors, laid out by t-SNE"
    )
    axes.set_axis_off()


#: Rows of the samples of each predicted class.
_ROWS = ("labelled", "surest", "middling", "least sure\nof the right", "wrong")


def _draw_samples(
    figure: Any, digits: Digits, labels: Array, result: LabelPropagationResult
) -> None:
    grid = figure.subplots(len(_ROWS), 10)
    figure.suptitle(
        "Some of what was predicted for each class, with its probability",
        x=0.01,
        ha="left",
        fontsize=12,
    )
    sure = result.distributions.max(axis=1)
    colors = _colors()
    for digit in range(10):
        of_class = result.labels == digit
        for row, vertex in enumerate(_samples(digits, labels, of_class, sure, digit)):
            axes = grid[row, digit]
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if row == 0:
                axes.set_title(
                    str(digit), loc="center", color=colors[digit], weight="bold"
                )
            if digit == 0:
                axes.set_ylabel(
                    _ROWS[row], rotation=0, ha="right", va="center", color=_INK
                )
            if vertex is None:
                continue
            axes.imshow(digits.images[vertex], cmap="gray_r", vmin=0, vmax=16)
            caption, color = f"{sure[vertex]:.0%}", _INK
            if row == len(_ROWS) - 1:
                caption += f", is {digits.truth[vertex]}"
                color = _WRONG
                axes.spines[:].set(visible=True, color=_WRONG)
            axes.set_xlabel(
                "given" if row == 0 else caption, color=color, fontsize=8, labelpad=2
            )


def _samples(
    digits: Digits, labels: Array, of_class: Array, sure: Array, digit: int
) -> list[int | None]:
    """Return a vertex for each of `_ROWS`, or None without one."""
    is_right = digits.truth == digit
    right = np.flatnonzero(of_class & is_right & (labels < 0))
    wrong = np.flatnonzero(of_class & ~is_right)
    right, wrong = right[np.argsort(-sure[right])], wrong[np.argsort(-sure[wrong])]
    seeds = np.flatnonzero(labels == digit)
    places = [(seeds, 0), (right, 0), (right, len(right) // 2), (right, -1), (wrong, 0)]
    return [int(found[i]) if found.size else None for found, i in places]


def _draw_curves(axes: Any, curves: dict[str, list[list[float]]]) -> None:
    shares = 100 * np.array(CURVE_SHARES)
    for (name, rows), color in zip(curves.items(), ("#1f77b4", "#ff7f0e"), strict=True):
        values = 100 * np.array(rows)
        axes.plot(
            shares, values.mean(axis=1), "o-", color=color, markersize=4, label=name
        )
        axes.fill_between(
            shares,
            values.min(axis=1),
            values.max(axis=1),
            color=color,
            alpha=0.15,
            lw=0,
        )
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:g}" for share in shares])
    axes.minorticks_off()
    axes.set_xlabel("labelled digits, %")
    axes.set_ylabel("right among the others, %")
    axes.set_title(f"Accuracy (mean and range of {CURVE_SEEDS} splits)", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=9)


def _draw_activity(axes: Any, run: Any) -> None:
    """Draw the number of vertices that each superstep committed."""
    supersteps = np.arange(1, len(run.active_counts) + 1)
    axes.fill_between(supersteps, run.active_counts, color="#2ca02c", alpha=0.25, lw=0)
    axes.plot(supersteps, run.active_counts, color="#2ca02c", lw=1.5)
    axes.set_xlabel("superstep")
    axes.set_ylabel("vertices still changing")
    axes.set_title(f"{run.supersteps:,} supersteps on {run.target}", fontsize=11)
    axes.set_xlim(1, max(len(supersteps), 2))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


# -- digits, and measures of results


Array = npt.NDArray[Any]

#: Shares of labelled digits, and seeds for each, of the curve in the picture.
CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
CURVE_SEEDS = 3


@dataclass(frozen=True, eq=False)
class Digits:
    """scikit-learn's handwritten digits, and the graph of their nearest neighbors.

    Attributes
    ----------
    images : ndarray of shape (V, 8, 8)
        Grey levels, 0 to 16.
    truth : ndarray of int64, shape (V,)
        The digit of each image.
    neighbors : int
        The number of nearest neighbors of each image.
    affinity : scipy.sparse matrix of shape (V, V)
        1 if either image is a nearest neighbor of the other.
    graph : Graph
        The undirected graph of `affinity`.
    """

    images: Array
    truth: npt.NDArray[np.int64]
    neighbors: int
    affinity: Any
    graph: fg.Graph

    @property
    def points(self) -> Array:
        """Images as rows, (V, 64)."""
        return self.images.reshape(len(self.images), -1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one method on one split.

    Attributes
    ----------
    name : str
        The method.
    accuracy : float
        Share of right labels among the images that were not labelled.
    rounds : int
        Supersteps or iterations.
    seconds : float
        Wall time.
    """

    name: str
    accuracy: float
    rounds: int
    seconds: float


def load_graph_of_digits(neighbors: int) -> Digits:
    """Load the digits that come with scikit-learn and make their graph.

    Parameters
    ----------
    neighbors : int
        The number of nearest neighbors of each image.

    Returns
    -------
    Digits
        1,797 images.

    Raises
    ------
    FeatGraphError
        If there are fewer images.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    images, truth = load_digits().images, load_digits().target
    if neighbors >= len(truth):
        raise FeatGraphError(
            "more neighbors than images", got=neighbors, expected=f"< {len(truth)}"
        )
    search = NearestNeighbors(n_neighbors=neighbors).fit(images.reshape(len(truth), -1))
    named = search.kneighbors_graph().astype(bool)
    affinity = named.maximum(named.T).tocsr().astype(np.float64)
    graph = fg.Graph.from_scipy(affinity, directed=False)
    return Digits(images, truth.astype(np.int64), neighbors, affinity, graph)


def split(
    truth: npt.NDArray[np.int64], share: float, seed: int
) -> npt.NDArray[np.int64]:
    """Return the labels with all but a random `share` of them replaced by -1.

    Parameters
    ----------
    truth : ndarray of int64, shape (V,)
        All labels.
    share : float
        In (0, 1).
    seed : int
        Of the random choice.

    Returns
    -------
    ndarray of int64, shape (V,)
        At least one label is kept.
    """
    order = np.random.default_rng(seed).permutation(len(truth))
    kept = order[: max(1, round(share * len(truth)))]
    labels = np.full(len(truth), -1, np.int64)
    labels[kept] = truth[kept]
    return labels


def accuracy(predicted: Array, truth: Array, labels: Array) -> float:
    """Return the share of right predictions among the unlabelled.

    Parameters
    ----------
    predicted, truth, labels : ndarray of int64, shape (V,)
        Labels; -1 in `labels` marks the unlabelled.

    Returns
    -------
    float
        In [0, 1].
    """
    return float((predicted == truth)[labels < 0].mean())


def propagate(digits: Digits, labels: Array, target: str) -> LabelPropagationResult:
    """Run label propagation with its defaults.

    Parameters
    ----------
    digits : Digits
        The graph.
    labels : ndarray of int64, shape (V,)
        -1 for the unlabelled.
    target : str
        Where to run.

    Returns
    -------
    LabelPropagationResult
        Over ten classes, also where some are not among the labels.
    """
    return label_propagation(
        digits.graph, labels, class_count=10, history=False, target=target
    )


def label_spreading(digits: Digits, labels: Array, *, same_graph: bool) -> Outcome:
    """Run scikit-learn's LabelSpreading, its other parameters at their defaults.

    Parameters
    ----------
    digits : Digits
        Points and graph.
    labels : ndarray of int64, shape (V,)
        -1 for the unlabelled.
    same_graph : bool
        Whether to use our graph; otherwise ``kernel="knn"`` builds a directed one.

    Returns
    -------
    Outcome
        The time includes building the graph if scikit-learn builds it.
    """
    from sklearn.semi_supervised import LabelSpreading

    kernel: Any = (lambda x, y: digits.affinity) if same_graph else "knn"
    model = LabelSpreading(kernel=kernel, n_neighbors=digits.neighbors)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that no label reaches are 0/0
        model.fit(digits.points, labels)
    seconds = time.perf_counter() - started
    name = "same graph" if same_graph else 'kernel="knn"'
    return Outcome(
        f"scikit-learn LabelSpreading, {name}",
        accuracy(model.transduction_, digits.truth, labels),
        model.n_iter_,
        seconds,
    )


def accuracy_curves(digits: Digits, target: str) -> dict[str, list[list[float]]]:
    """Compute accuracy by share of labelled digits for both methods, on our graph.

    Parameters
    ----------
    digits : Digits
        Points and graph.
    target : str
        Target of label propagation.

    Returns
    -------
    dict
        Method -> accuracies, by `CURVE_SHARES` (outer) and seed (inner).
    """
    ours, theirs = [], []
    for share in CURVE_SHARES:
        splits = [split(digits.truth, share, seed) for seed in range(CURVE_SEEDS)]
        ours.append(
            [
                accuracy(propagate(digits, s, target).labels, digits.truth, s)
                for s in splits
            ]
        )
        theirs.append(
            [label_spreading(digits, s, same_graph=True).accuracy for s in splits]
        )
    return {"featgraph": ours, "scikit-learn LabelSpreading": theirs}

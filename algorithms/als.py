"""Alternating least squares: users and items as vectors whose products are ratings.

The graph is bipartite, its edges are the ratings r(u, v). One side is held and every
vertex of the other gets the exact minimum of the regularised squared error. With x(u)
the factors of vertex u, explicit ratings give, for every v of one side::

    sc(v) = sum over its ratings of r(u, v) * x(u)
    ic(v) = sum over its ratings of x(u) x(u)^T
    x'(v) = solve(ic(v) + ridge(v) I, sc(v))

and then the same for the other side. Both at once would not do: each would answer to
what the other has just left. ``ridge(v)`` is lambda, or lambda times the ratings of v
(*weighted* lambda, ALS-WR). Implicit feedback takes every pair of user and item as a
rating, 1 with confidence c > 0 for the pairs given and 0 with confidence 1 for all
others. What the others add up to is one matrix for a whole side::

    gram  = sum over the other side of x(u) x(u)^T
    sc(v) = sum over its edges of c(u, v) * x(u)
    ic(v) = gram + sum over its edges of (c(u, v) - 1) * x(u) x(u)^T

``solver="cg"`` makes some steps of conjugate gradients from the old x(v) instead. They
need the products of ic(v) with a vector only, ``x(u) * dot(x(u), p(v))`` summed over
the edges: no k x k matrix. All steps are one kernel, vertex after vertex.

State: ``x`` (V, K), ``c`` and ``r`` an edge. A half superstep takes E (k^2 + k) and
V k^3 / 3 multiply-adds by Cholesky, E k (4 + 4 steps) by conjugate gradients.

Y. Zhou, D. Wilkinson, R. Schreiber, R. Pan, "Large-scale Parallel Collaborative
Filtering for the Netflix Prize", AAIM 2008 (weighted lambda); Y. Hu, Y. Koren, C.
Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008; G.
Takacs, I. Pilaszy, D. Tikk, "Applications of the Conjugate Gradient Method for Implicit
Feedback Collaborative Filtering", RecSys 2011. The form per feature is that of Onyx.
"""

from __future__ import annotations

import math

import featgraph as fg

__all__ = ["CG_STEPS", "cg_half", "cholesky_half", "gram_of_others"]


@fg.reduce(into="gram", combine="sum", matrix=True)
def gram(i, f, v, d):  # type: ignore[no-untyped-def]
    """Entry (i, f) of the sum of all outer products of one side."""
    return fg.outer(d.x[v], d.x[v])[i, f]


@fg.gather(into="sc", combine="sum")
def targets(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """The right-hand side: c * r is what the edge asks for, times its confidence."""
    return d.c_r[e] * d.x[u, f]


@fg.gather(into="ic", combine="sum", matrix=True)
def products(i, f, u, v, e, d):  # type: ignore[no-untyped-def]
    """The matrix: outer products, weighted by the confidence above the background."""
    return d.c_above[e] * fg.outer(d.x[u], d.x[u])[i, f]


@fg.vertex
def minimum(f, v, d):  # type: ignore[no-untyped-def]
    """Where the error of v is least; a vertex without ratings stays as it is."""
    if d.in_degree[v] == 0:
        return False
    trace = fg.feature_sum(d.ic[v, f, f] + d.gram[f, f])
    ridge = d.ridge[v] + d.floor * trace
    new = fg.solve(d.ic[v] + d.gram, d.sc[v, f], diagonal=ridge, spd=True)
    d.explained[v] = fg.dot(new, d.sc[v, f])
    d.failed[v] = fg.any_feature(not math.isfinite(new))
    d.x_next[v, f] = new
    return fg.any_feature(abs(new - d.x[v, f]) > d.tolerance)


@fg.gather(into="ax", combine="sum")
def at_start(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """The edges' part of ic(v) x(v)."""
    return d.c_above[e] * fg.dot(d.x[u], d.x[v]) * d.x[u, f]


@fg.vertex
def begin(f, v, d):  # type: ignore[no-untyped-def]
    """Residual and first direction of the conjugate gradients."""
    if d.in_degree[v] == 0:
        return False
    x = d.x[v, f]
    r = d.sc[v, f] - (d.ax[v, f] + fg.matvec(d.gram, x) + d.ridge[v] * x)
    d.r[v, f] = r
    d.p[v, f] = r
    d.r_r[v] = fg.dot(r, r)
    d.x_next[v, f] = x
    return True


@fg.gather(into="ap", combine="sum")
def along(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """The edges' part of ic(v) p(v)."""
    return d.c_above[e] * fg.dot(d.x[u], d.p[v]) * d.x[u, f]


@fg.vertex
def advance(f, v, d):  # type: ignore[no-untyped-def]
    """One step to the minimum along p, then a direction conjugate to it."""
    p = d.p[v, f]
    ap = d.ap[v, f] + fg.matvec(d.gram, p) + d.ridge[v] * p
    curvature = fg.dot(p, ap)
    size = d.r_r[v] / curvature if curvature > 0 else 0.0
    r = d.r[v, f] - size * ap
    r_r = fg.dot(r, r)
    turn = r_r / d.r_r[v] if d.r_r[v] > 0 else 0.0
    d.x_next[v, f] = d.x_next[v, f] + size * p
    d.r[v, f] = r
    d.p[v, f] = r + turn * p
    d.r_r[v] = r_r
    return True


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    """What the factors explain; announce what moved."""
    x = d.x_next[v, f]
    d.explained[v] = fg.dot(x, d.sc[v, f] + d.r[v, f])
    d.failed[v] = fg.any_feature(not math.isfinite(x))
    return fg.any_feature(abs(x - d.x[v, f]) > d.tolerance)


#: As many as leave alternating steps as good as exact ones (Takacs et al. 2011).
CG_STEPS = 3

gram_of_others = fg.foldmap(gram)
cholesky_half = fg.foldmap(targets, products, minimum)
cg_half = fg.foldmap(targets, at_start, begin, *(along, advance) * CG_STEPS, settle)

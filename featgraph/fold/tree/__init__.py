"""Loop nests: statements, nodes, invariants, and walks over rows of edges.

Begin with `nodes`, which lists the nodes of a nest, from the sweep of a phase down to
lanes and registers. `statements` builds and rewrites trees, `layout` generates walks
over adjacencies, and `passes` runs passes and verifies their results.
"""

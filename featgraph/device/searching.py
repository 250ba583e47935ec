"""Rows of neighbors, as plain Python that both targets compile.

`featgraph.device.warp` and `featgraph.device.cpu` compile these functions and offer
them under the same names.

====================================================  ================================
``sort_triangle(low, high, third, edge, to_low,       (u, v, w, e_uv, e_uw, e_vw): the
to_high)``                                            ends of an edge and a third vertex
                                                      by degree
====================================================  ================================
"""


def sort_triangle(low, high, third, edge, to_low, to_high):
    """Put a vertex in its place by degree among the ends of an edge, low < high.

    `to_low` and `to_high` are the edges between it and these ends.
    """
    if third < low:
        return third, low, high, to_low, to_high, edge
    if third < high:
        return low, third, high, to_low, edge, to_high
    return low, high, third, edge, to_low, to_high

"""Repartitioning during a run (0062).

`moves` decides when a move pays, and moves a State; `distribute` moves the graph.
"""

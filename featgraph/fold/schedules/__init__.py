"""Schedules: mappings of vertices, edges and features to threads.

Begin with `base`, the interface of a schedule, and `thread`, the simplest schedule of a
GPU. `table` lists all of them, and `mapping` has the numbers and facts that they share.
"""

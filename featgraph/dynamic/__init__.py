"""Graphs that change in batches of edges, on the host or on a GPU.

Batches of insertions and deletions enter; `graph.DynamicGraph` is a graph for programs
as any other. `store` holds rows with spare room (`pools`, `gpu_pools`), `batches`
applies changes, `views` shows the rows to kernels, `events` reads streams of edges with
times. Begin with `graph`, then `store`.
"""

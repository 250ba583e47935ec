"""Graphs in folders of slices: raw arrays that can be read by ranges.

`files` has the manifest of a folder, and reads and checks ranges of its arrays; `write`
makes a folder. `read` reads graphs to the host, `on_gpu` to a GPU. All readers use
`checks`, which compares sums over edges (`sums`) with those of the manifest.
"""

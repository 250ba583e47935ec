"""Graphs in folders of slices: raw arrays that can be read by ranges.

`files` has the manifest of a folder, and reads and checks ranges of its arrays; `write`
makes a folder. `read` and `on_gpu` read graphs; all readers use the checks in `checks`.
"""

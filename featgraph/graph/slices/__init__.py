"""Graphs in folders of slices: raw arrays that can be read by ranges.

`manifest` describes a folder, `write` makes one, and `files` reads and checks ranges of
its arrays. `read` and `on_gpu` read graphs; all readers use the checks in `checks`.
"""

"""``featgraph launch``: starts ranks on hosts, watches them, and ends them (0056).

`launcher` runs an `agent` on each host, which starts the ranks there; `roll` finds the
rank that has failed. On each rank, `start.init` joins the others.
"""

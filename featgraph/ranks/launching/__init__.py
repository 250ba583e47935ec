"""``featgraph launch``: starts ranks on hosts, watches them, and ends them (0056)."""

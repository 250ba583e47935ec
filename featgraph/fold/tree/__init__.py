"""Loop nests: their statements, what may stand in them, and how rows are walked."""

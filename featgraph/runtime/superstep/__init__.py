"""One superstep: which vertices are due, what is launched, what is committed."""

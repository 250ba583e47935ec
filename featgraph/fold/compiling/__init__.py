"""From the text of a module to compiled kernels."""

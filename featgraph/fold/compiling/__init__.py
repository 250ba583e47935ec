"""From the text of a module to kernels that run."""

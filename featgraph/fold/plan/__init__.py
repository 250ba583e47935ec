"""Every decision about the kernels of a program."""

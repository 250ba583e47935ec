"""From the text of a module to compiled kernels.

Begin with `kernel.Kernel`. `compile.load_module` imports generated text from the store
on disk, and `signatures` has the Numba types of the arguments of kernels.
"""

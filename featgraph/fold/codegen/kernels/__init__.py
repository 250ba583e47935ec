"""What kernels of both targets share."""

"""What runs folded programs: buffers, supersteps, the driver."""

"""Arrays of callers, checked on the host or on the GPU."""

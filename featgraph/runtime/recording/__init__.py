"""What supersteps ask the CUDA driver for, and ways to ask for it again."""

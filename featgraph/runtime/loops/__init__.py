"""Many supersteps: what is due, and the ways to run them, a file each."""

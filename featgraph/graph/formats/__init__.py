"""Files that graphs and models are read from."""

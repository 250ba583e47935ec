"""How ranks on GPUs hand rows, entries and numbers to each other."""

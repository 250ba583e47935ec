"""Exchange of rows, edge entries and numbers between ranks on GPUs."""

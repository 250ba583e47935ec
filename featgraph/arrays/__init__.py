"""Arrays on the host and on GPUs: foreign arrays, copies, sorting, edges and rows."""

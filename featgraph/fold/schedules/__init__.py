"""How vertices, edges and features go to threads: one file a schedule."""

"""Exchange of entries of vertices and edges between their owners and other ranks."""

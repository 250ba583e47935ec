"""Arrays of a graph that its GPU makes."""

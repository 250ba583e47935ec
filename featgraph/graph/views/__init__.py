"""Views of a graph on a device: stamps, sizes, the set of all vertices, layouts."""

"""Schedules: mappings of vertices, edges and features to threads."""

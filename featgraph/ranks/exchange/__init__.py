"""Entries of vertices and edges that other ranks own, and how they are sent."""

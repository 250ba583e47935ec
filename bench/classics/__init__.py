"""Traversals, components, centralities and triangles, beside other libraries."""

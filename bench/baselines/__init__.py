"""Peers that featgraph is measured against."""

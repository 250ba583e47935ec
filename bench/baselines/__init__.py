"""What featgraph is measured against."""

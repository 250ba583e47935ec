"""From edge lists to adjacencies."""

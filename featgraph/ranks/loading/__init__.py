"""Building of distributed graphs from edges of all ranks; no rank ever has them all."""

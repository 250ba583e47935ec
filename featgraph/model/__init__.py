"""How long supersteps take on P ranks, before these are paid for (0059)."""

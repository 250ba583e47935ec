"""What ranks would take, by the model of time, and what they have done (0059)."""

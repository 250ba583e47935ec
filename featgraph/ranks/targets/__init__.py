"""Exchange of rows between ranks with different targets."""

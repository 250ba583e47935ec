"""Arrays of the host and of devices: what they are given as, and copies of them."""

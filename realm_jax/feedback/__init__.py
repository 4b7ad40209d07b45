"""What clients report of the passages that a service retrieved for them."""

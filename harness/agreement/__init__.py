"""What `parity` compares: our values with those of other systems."""

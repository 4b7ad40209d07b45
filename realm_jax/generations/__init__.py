"""Published indexes: built by one process, followed by another."""

"""What a run needs of a TPU slice that need not exist."""

"""Pure functions from scores to a loss and its metrics."""

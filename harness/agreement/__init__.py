"""Comparisons of our values with other systems', for `benchmarks.parity`."""

"""Compares retrieval of two hops, learned with and without gold paths."""

"""Checkpoints: orbax composites with named items."""

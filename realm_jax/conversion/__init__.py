"""Weights, blocks and indexes of other systems, in and out."""

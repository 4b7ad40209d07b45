"""Inputs: from a seqio task to the batches of a step."""

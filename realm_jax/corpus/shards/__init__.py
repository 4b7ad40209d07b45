"""Shards: the arrays of a corpus, written to files and mapped from them."""

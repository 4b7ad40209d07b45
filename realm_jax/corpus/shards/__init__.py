"""The files of a corpus: one shard's arrays, written and mapped."""

"""The corpus: documents split into blocks, stored memory-mapped."""

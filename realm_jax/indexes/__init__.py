"""Indexes behind one protocol: exact, ScaNN, BM25 and a random control."""

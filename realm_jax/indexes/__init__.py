"""Indexes behind one protocol: exact, ScaNN, FAISS, BM25, a random control."""

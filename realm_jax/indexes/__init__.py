"""Search indexes behind one protocol: exact, ScaNN, FAISS, BM25 and random."""

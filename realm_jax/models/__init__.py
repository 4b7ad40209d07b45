"""Flax modules: BERT, the retriever's towers and the reader."""

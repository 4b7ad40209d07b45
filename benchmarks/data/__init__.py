"""Corpora, texts and vectors for benchmarks."""

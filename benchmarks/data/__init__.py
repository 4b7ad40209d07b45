"""Corpora, texts and vectors that benchmarks measure on."""

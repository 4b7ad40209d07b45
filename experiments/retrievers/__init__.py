"""Compares ways to train a retriever and a cross-encoder on judged passages."""

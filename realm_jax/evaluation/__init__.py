"""Metrics, and the evaluation of retrievers and readers."""

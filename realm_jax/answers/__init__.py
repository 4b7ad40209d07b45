"""Answers: normalized, compared with predictions, and located in blocks."""

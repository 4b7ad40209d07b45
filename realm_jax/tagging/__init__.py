"""Taggers of salient spans that run a model."""

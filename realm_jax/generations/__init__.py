"""Generations: indexes that a sidecar publishes and trainers follow."""

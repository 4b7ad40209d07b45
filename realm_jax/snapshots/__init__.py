"""Snapshots: indexes that an index builder publishes and trainers follow."""

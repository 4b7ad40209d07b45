"""Starts the jobs of a run together, on this machine or on a cluster."""

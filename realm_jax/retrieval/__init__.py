"""Candidates for each query, found one step ahead of the device."""

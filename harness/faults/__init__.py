"""Faults that are injected into runs at random moments, and what they left."""

"""Injects faults into runs at random times, and checks the results."""

"""REALM's ablations: rows, the runs that they share, and their results."""

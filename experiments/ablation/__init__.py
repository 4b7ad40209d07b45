"""REALM's ablations: rows, the runs that they share, and what came out."""

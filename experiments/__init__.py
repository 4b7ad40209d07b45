"""The demo with its generated world, ablations and comparisons.

Only a clone has them, not the package.
"""

"""Finding, verifying and loading what was published."""

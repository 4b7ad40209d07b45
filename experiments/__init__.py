"""The demo, its generated world and the ablations: in a clone alone."""

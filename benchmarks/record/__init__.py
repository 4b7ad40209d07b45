"""Whether the present tree computes what a base commit does: the record."""

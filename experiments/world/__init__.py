"""A generated, fictional world with questions about it, for the demo."""

"""A generated, fictional encyclopedia with questions about it, for the demo."""

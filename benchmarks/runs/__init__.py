"""A trainer and its index builder as processes, undisturbed and disturbed."""

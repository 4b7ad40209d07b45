"""A run that keeps its own index, a slice of which each step embeds again."""

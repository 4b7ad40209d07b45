"""The programs that a recipe would run on a slice, with abstract arrays."""

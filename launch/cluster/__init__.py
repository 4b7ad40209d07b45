"""The jobs of a run on TPU slices."""

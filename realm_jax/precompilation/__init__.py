"""Resources that a run needs on a TPU slice, computed without the slice."""

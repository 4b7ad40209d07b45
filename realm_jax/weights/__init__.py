"""Import and export of weights, blocks and vectors of other systems.

Tables (`name_maps.py`) pair our names of modules with theirs, and are used in
both directions. Every function raises `WeightsError` if a file cannot be read
or does not fit, or if a user's choice does not fit the file; docstrings list
only other errors.
"""

from realm_jax.errors import RealmError


class WeightsError(RealmError):
  """Weights that cannot be read, written, or fitted to a model."""

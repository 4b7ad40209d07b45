"""Weights, blocks and vectors of other systems, in and out.

A table (`name_maps.py`) names each module here and there, and is read both
ways. Any function raises `WeightsError` for a file that cannot be read or does
not fit, and for a choice of the user that does not fit the file; docstrings say
what else is raised.
"""

from realm_jax.errors import RealmError


class WeightsError(RealmError):
  """Weights that cannot be read, written, or fitted to a model."""

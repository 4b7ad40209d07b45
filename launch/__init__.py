"""Starts the jobs of a run together, on this machine or on a cluster."""

from realm_jax.errors import RealmError


class LaunchError(RealmError):
  """A launch whose flags are wrong or incomplete, or whose gin files are."""

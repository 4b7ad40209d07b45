"""Starts the jobs of a run together, on this machine or on a cluster."""


class LaunchError(ValueError):
  """A launch whose flags are wrong or incomplete, or whose gin files are."""

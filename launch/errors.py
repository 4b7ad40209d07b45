"""The error of a launch."""


class LaunchError(ValueError):
  """A launch whose flags are wrong or incomplete, or whose gin files are."""

"""The error that every part of the configuration raises."""


class ConfigurationError(ValueError):
  """A gin file or binding that is wrong, or a run that has none."""

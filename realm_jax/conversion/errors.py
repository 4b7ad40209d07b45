"""The error of a conversion that cannot be done."""


class ConversionError(ValueError):
  """A foreign file that cannot be read, or does not fit the model."""

"""What can be wrong with what another system left."""


class ConversionError(ValueError):
  """A foreign file that cannot be read, or does not fit the model."""

"""What can be wrong with a corpus or its input."""


class CorpusError(ValueError):
  """A corpus directory that cannot be read, written or used."""


class InputError(ValueError):
  """Input text that cannot be read; names the file and the line."""

"""The corpus: documents split into blocks, stored memory-mapped."""


class CorpusError(ValueError):
  """A corpus directory that cannot be read, written or used."""


class InputError(ValueError):
  """Input text that cannot be read; the message names the file and line."""

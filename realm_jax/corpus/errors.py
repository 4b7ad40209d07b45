"""Errors about a corpus and its input."""


class CorpusError(ValueError):
  """A corpus directory that cannot be read, written or used."""


class InputError(ValueError):
  """Input text that cannot be read; the message names the file and line."""

"""The corpus: documents split into blocks, stored memory-mapped."""

from realm_jax.errors import RealmError


class CorpusError(RealmError):
  """A corpus directory that cannot be read, written or used."""


class InputError(RealmError):
  """Input text that cannot be read; the message names the file and line."""

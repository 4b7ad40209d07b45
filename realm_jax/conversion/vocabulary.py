"""Vocabulary files of imported models."""

import re
from collections.abc import Sequence
from pathlib import Path

from realm_jax.conversion.errors import ConversionError
from realm_jax.text import wordpieces

VOCABULARY_FILE = "vocab.txt"


def require_uncased(pieces: Sequence[str], *, where: str | Path) -> None:
  """Raises `ConversionError` if a piece has a capital letter."""
  # Special and unused pieces are in brackets.
  cased = [p for p in pieces if re.search(r"[A-Z]", p) and p[0] != "["]
  if cased:
    raise ConversionError(
      f"{where} has {len(cased)} pieces with capitals, such as {cased[0]!r}: "
      "it is a cased model's vocabulary, and wordpieces here are uncased. Use "
      "the uncased model"
    )


def read_uncased_pieces(path: Path) -> tuple[str, ...]:
  """Reads the vocabulary file of an uncased model."""
  pieces = wordpieces.read_pieces(path)
  require_uncased(pieces, where=path)
  return pieces

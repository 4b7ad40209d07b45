"""Vocabulary files of imported models."""

import re
from collections.abc import Sequence
from pathlib import Path

from realm_jax.conversion.errors import ConversionError
from realm_jax.text import wordpieces

VOCABULARY_FILE = "vocab.txt"


def pieces_with_capitals(pieces: Sequence[str]) -> list[str]:
  """Returns the pieces that uncased models do not have."""
  # Special and unused pieces are in brackets.
  return [p for p in pieces if re.search(r"[A-Z]", p) and p[0] != "["]


def require_uncased(pieces: Sequence[str], *, where: str | Path) -> None:
  """Raises `ConversionError` if a piece has a capital letter."""
  if cased := pieces_with_capitals(pieces):
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

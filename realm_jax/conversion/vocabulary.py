"""Vocabulary files of imported models."""

import re
from collections.abc import Sequence

from realm_jax.conversion.errors import ConversionError

VOCABULARY_FILE = "vocab.txt"


def require_uncased(pieces: Sequence[str], *, where: str) -> None:
  """Checks that a vocabulary is not a cased model's.

  Raises:
    ConversionError: If a piece has a capital letter.
  """
  # Special and unused pieces are in brackets.
  cased = [p for p in pieces if re.search(r"[A-Z]", p) and p[0] != "["]
  if cased:
    raise ConversionError(
      f"{where} has {len(cased)} pieces with capitals, such as {cased[0]!r}: "
      "it is a cased model's vocabulary, and wordpieces here are uncased. Use "
      "the uncased model"
    )

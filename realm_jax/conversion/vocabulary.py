"""Vocabulary files beside weights."""

import re
from collections.abc import Sequence

from realm_jax.conversion.errors import ConversionError

VOCABULARY_FILE = "vocab.txt"


def require_uncased(pieces: Sequence[str], *, where: str) -> None:
  """Refuses the pieces of a cased model, where no file says what it is.

  Raises:
    ConversionError: a piece has a capital letter.
  """
  # Special pieces, and those left unused, are in brackets.
  cased = [p for p in pieces if re.search(r"[A-Z]", p) and p[0] != "["]
  if cased:
    raise ConversionError(
      f"{where} has {len(cased)} pieces with capitals, such as {cased[0]!r}: "
      "it is a cased model's, and wordpieces here are uncased. Take the "
      "uncased model"
    )

"""Vocabulary files beside weights."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.text.wordpieces import WordpieceVocabulary

NAME = "vocab.txt"


def write_vocabulary(
  directory: epath.PathLike, pieces: tuple[str, ...]
) -> None:
  """Writes vocab.txt: a piece a line, in the order of ids."""
  path = epath.Path(directory) / NAME
  path.write_bytes(("\n".join(pieces) + "\n").encode("utf-8"))


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


def vocabulary_of(pieces: tuple[str, ...]) -> WordpieceVocabulary:
  """A vocabulary that stands in no file."""
  with tempfile.TemporaryDirectory() as folder:
    write_vocabulary(folder, pieces)
    return WordpieceVocabulary(Path(folder, NAME))

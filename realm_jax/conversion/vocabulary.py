"""Vocabulary files beside weights."""

import tempfile
from pathlib import Path

from etils import epath

from realm_jax.text.wordpieces import WordpieceVocabulary

NAME = "vocab.txt"


def write_vocabulary(
  directory: epath.PathLike, pieces: tuple[str, ...]
) -> None:
  """Writes vocab.txt: a piece a line, in the order of ids."""
  path = epath.Path(directory) / NAME
  path.write_bytes(("\n".join(pieces) + "\n").encode("utf-8"))


def vocabulary_of(pieces: tuple[str, ...]) -> WordpieceVocabulary:
  """A vocabulary that stands in no file."""
  with tempfile.TemporaryDirectory() as folder:
    write_vocabulary(folder, pieces)
    return WordpieceVocabulary(Path(folder, NAME))

"""TF-Hub modules of TensorFlow 1: their variables and assets.

MODULE/variables/variables.{index,data-…}
MODULE/assets/vocab.txt
"""

from pathlib import Path

from realm_jax.conversion.google.checkpoint import INDEX
from realm_jax.conversion.vocabulary import VOCABULARY_FILE


def variables(directory: Path) -> Path:
  """Returns the prefix of a module's checkpoint, which need not exist."""
  return directory / "variables" / "variables"


def vocabulary(directory: Path) -> Path:
  """Returns the path of a module's vocabulary, which need not exist."""
  return directory / "assets" / VOCABULARY_FILE


def is_module(directory: Path) -> bool:
  """Returns whether a directory has a module's variables."""
  prefix = variables(directory)
  return prefix.with_name(prefix.name + INDEX).is_file()

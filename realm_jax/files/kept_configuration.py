"""The configuration that a MODEL_DIR keeps, as text, in config.gin."""

import difflib

from absl import logging
from etils import epath

from realm_jax.files.json_file import whole_text_file

NAME = "config.gin"


def keep_configuration(model_dir: epath.PathLike, text: str) -> None:
  """Replaces the configuration of a run, and logs what differs from before.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
  """
  path = epath.Path(model_dir) / NAME
  before = path.read_text() if path.exists() else text
  if changes := _changes(before, text):
    logging.warning(
      "The configuration differs from the one in %s, which it replaces:\n%s",
      path,
      "\n".join(changes),
    )
  with whole_text_file(path) as file:
    file.write(text)


def _changes(before: str, after: str) -> list[str]:
  """Returns the lines that were removed, with "-", and added, with "+"."""
  lines = difflib.ndiff(_bindings(before), _bindings(after))
  return [f"  {line[0]} {line[2:]}" for line in lines if line[0] in "+-"]


def _bindings(text: str) -> list[str]:
  lines = text.splitlines()
  return [line for line in lines if line and not line.startswith("#")]

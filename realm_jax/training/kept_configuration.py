"""The configuration that a MODEL_DIR keeps, as text, in two gin files."""

import difflib
from collections.abc import Mapping

from absl import logging
from etils import epath

from realm_jax.storage.atomic import atomic_text_file

# All of it, and what other commands need (`realm_jax/configuration/runs.py`).
WHOLE = "config.gin"
MODEL = "model.gin"
_FOLDER_OF_CHECKPOINTS = "checkpoints"


def run_directory(model_dir: epath.PathLike) -> epath.Path:
  """Returns the directory of a run, which may be named by a checkpoint."""
  folder = epath.Path(model_dir)
  is_checkpoint = folder.parent.name == _FOLDER_OF_CHECKPOINTS
  return folder.parent.parent if is_checkpoint else folder


def keep_configuration(
  model_dir: epath.PathLike, files: Mapping[str, str]
) -> None:
  """Replaces the files of a run, and logs what differs from before.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
  """
  for name, text in files.items():
    path = epath.Path(model_dir) / name
    before = path.read_text() if path.exists() else text
    old, new = (
      [line for line in one.splitlines() if line and not line.startswith("#")]
      for one in (before, text)
    )
    changes = [
      f"  {line}" for line in difflib.ndiff(old, new) if line[0] in "+-"
    ]
    # The other file has no line that this one lacks.
    if name == WHOLE and changes:
      logging.warning(
        "The configuration differs from the one in %s, which it replaces:\n%s",
        path,
        "\n".join(changes),
      )
    with atomic_text_file(path) as file:
      file.write(text)

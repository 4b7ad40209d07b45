"""Which generations a reader found damaged, so that a builder looks again.

A builder that runs compares sizes alone, since it cannot read every byte all
the time. Whoever has read them tells it here; it then holds the files against
their checksums itself.
"""

from absl import logging
from etils import epath

from realm_jax.generations.store import layout


def tell(generations_dir: epath.PathLike, step: int) -> None:
  """Says that a generation is damaged; what cannot be said is in the log."""
  folder = epath.Path(generations_dir) / layout.REFUSED
  try:
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{step:08d}").write_text("")
  except OSError as error:
    logging.warning("no builder learns of generation %d: %s", step, error)


def take(generations_dir: epath.PathLike) -> list[int]:
  """The steps that were told since this was asked last."""
  folder = epath.Path(generations_dir) / layout.REFUSED
  try:
    names = [path.name for path in folder.iterdir()]
  except (FileNotFoundError, NotADirectoryError):
    return []
  steps = sorted(int(name) for name in names if name.isdecimal())
  for step in steps:
    folder.joinpath(f"{step:08d}").unlink(missing_ok=True)
  return steps

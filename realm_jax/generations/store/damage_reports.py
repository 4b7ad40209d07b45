"""Reports of damaged generations, from readers to the sidecar.

A running sidecar compares sizes alone, since it cannot read all bytes all the
time. A reader has read them, and reports what is damaged; the sidecar then
verifies the checksums itself.
"""

from absl import logging
from etils import epath

from realm_jax.generations.store import layout


def report_damage(generations_dir: epath.PathLike, step: int) -> None:
  """Reports that a generation is damaged; a failure to do so is logged."""
  folder = epath.Path(generations_dir) / layout.DAMAGE_REPORTS
  try:
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{step:08d}").write_text("")
  except OSError as error:
    logging.warning(
      "the damage of generation %d could not be reported: %s", step, error
    )


def take_reports(generations_dir: epath.PathLike) -> list[int]:
  """Removes all reports and returns their steps, in order."""
  folder = epath.Path(generations_dir) / layout.DAMAGE_REPORTS
  if not folder.is_dir():
    return []
  names = [path.name for path in folder.iterdir()]
  steps = sorted(int(name) for name in names if name.isdecimal())
  for step in steps:
    folder.joinpath(f"{step:08d}").unlink(missing_ok=True)
  return steps

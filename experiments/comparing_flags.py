"""Flags of commands that compare systems, in a module that loads fast."""

from absl import flags


def define(name: str) -> None:
  """Defines the flags of the command `experiments.NAME`."""
  flags.DEFINE_string(
    "output_dir", f"out/{name}", "Directory of all runs and the report."
  )
  flags.DEFINE_integer(
    "seeds", 3, "Number of worlds, each with its seed.", lower_bound=1
  )
  flags.DEFINE_list("systems", [], "Systems to compare; by default all.")

"""Runs REALM's ablations: which of its parts matter, over several seeds.

    python -m realm_jax.ablate --gin_file=gin/experiments/demo/ablation.gin \\
      --output_dir=out/ablation

The default rows are those of the paper's Table 2, and `--rows=all` adds further
ones (docs/ablation.md). Each is pre-trained with a sidecar, fine-tuned on open
QA and evaluated. The command prints means, standard deviations and paired tests
against REALM, and writes them with plots to --output_dir. `--dry_run` lists the
runs, and which rows share them.

What stands is not made again: after SIGTERM or Ctrl-C, which let a trainer save
a checkpoint, the same command continues. A run that was begun with another
corpus, seed or batch size is refused by `train`; the reports name the commit.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from realm_jax.ablation.rows import select
from realm_jax.configuration import command_line
from realm_jax.partitioning.agreement import commit
from realm_jax.stage_commands import StoppedError
from realm_jax.storage.json_files import write_json
from realm_jax.storage.sole_process import sole_process

if TYPE_CHECKING:
  from realm_jax.ablation.runs import Plan

_ROWS = flags.DEFINE_list(
  "rows", ["table2"], "Rows by name; or a part of them, or `all`."
)
_SEEDS = flags.DEFINE_integer(
  "seeds", None, "Number of seeds; by default the recipe's.", lower_bound=1
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/ablation", "Directory of all runs and of the report."
)
_JSON = flags.DEFINE_string(
  "json", None, "File of the figures; by default OUTPUT_DIR/ablation.json."
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "List the runs and the rows that share them; run nothing."
)
_STOPPED = 128 + signal.SIGTERM


def main(argv: Sequence[str]) -> int:
  """Makes the runs of the chosen rows, and reports."""
  del argv
  rows = select(_ROWS.value)
  from realm_jax.ablation import execution, report
  from realm_jax.ablation.config import AblationConfig
  from realm_jax.ablation.figures import figures_of
  from realm_jax.ablation.plan import make_plan
  from realm_jax.ablation.recipes import Recipes

  config = command_line.call(AblationConfig)
  output_dir = Path(_OUTPUT_DIR.value)
  seeds = list(range(_SEEDS.value or config.num_seeds))
  recipes = Recipes()
  plan = make_plan(
    config, rows, seeds=seeds, output_dir=output_dir, recipes=recipes
  )
  if _DRY_RUN.value:
    print(report.plan_table(plan, _states(plan)))
    return 0
  # Processes of runs do not see Ctrl-C; they are stopped as by SIGTERM.
  signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
  advice = "stop it, or choose another --output_dir"
  try:
    with sole_process(output_dir, "ablation", advice=advice):
      execution.execute(plan, data=config.data, output_dir=output_dir)
  except StoppedError as error:
    print(f"\n{error}\nThe same command continues.", flush=True)
    return _STOPPED
  figures = {
    "seeds": seeds,
    "commit": commit(),
    **figures_of(plan, rows),
  }
  write_json(_JSON.value or output_dir / "ablation.json", figures)
  print(f"\n{report.write_report(output_dir, figures)}")
  return 0


def _states(plan: "Plan") -> list[str]:
  """Returns whether each run is finished, to be continued, or to be made."""
  from realm_jax.ablation import execution

  states = []
  for run in plan.runs:
    if execution.is_finished(run):
      states.append("finished")
    elif run.folder.exists():
      states.append("begun")
    else:
      states.append("to do")
  return states


if __name__ == "__main__":
  command_line.run(main)

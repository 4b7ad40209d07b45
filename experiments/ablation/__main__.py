"""Runs REALM's ablations, which measure the effect of its parts.

    python -m experiments.ablation \\
      --gin_file=experiments/gin/demo/ablation.gin --output_dir=out/ablation

By default, the rows are the paper's Table 2, and `--rows=all` adds further rows
(docs/results.md). experiments/gin/objectives/ablation.gin defines the rows of
`--rows=objectives` and `--rows=staleness`. Each row is pre-trained with an
index builder, fine-tuned on open QA and evaluated, with several seeds. The
command prints means, standard deviations and paired tests against REALM, and
writes them to --output_dir with plots. `--dry_run` lists the runs, and the rows
that share them.

Finished runs are reused: after SIGTERM or Ctrl-C, which let a trainer save a
checkpoint, the same command continues. `train` refuses to continue a run with
another corpus, seed or batch size. The reports include the commit.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.partitioning.agreement import commit
from realm_jax.storage.json_files import write_json
from realm_jax.storage.sole_process import sole_process

_ROWS = flags.DEFINE_list(
  "rows",
  [],
  "Names of rows, names of parts, or `all`. The default is the rows of Table "
  "2, all rows in two languages, or the objectives.",
)
_SEEDS = flags.DEFINE_integer(
  "seeds", None, "Number of seeds; by default the recipe's.", lower_bound=1
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/ablation", "Directory of all runs and the report."
)
_JSON = flags.DEFINE_string(
  "json",
  None,
  "File for the results, by default OUTPUT_DIR/ablation.json. The report is "
  "written to the same folder.",
)
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "Only list the runs, and the rows that share them."
)


def main(argv: Sequence[str]) -> None:
  """Runs the chosen rows, and writes the report."""
  del argv
  from experiments.ablation import report
  from experiments.ablation.plan import chosen_ablation
  from experiments.ablation.rows import select

  config = command_line.configured(chosen_ablation)()
  all_rows = config.all_rows()
  rows = select(_ROWS.value or [all_rows[0].part], all_rows)
  folder = Path(_OUTPUT_DIR.value)
  num_seeds = _SEEDS.value or config.num_seeds
  seeds = [config.first_seed + number for number in range(num_seeds)]
  plans = config.plans(rows, seeds, folder)
  if _DRY_RUN.value:
    print(report.plan_table(plans))
    return
  # Ctrl-C has the effect of SIGTERM.
  signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
  advice = "stop it, or choose another --output_dir"
  with sole_process(folder, "ablation", advice=advice):
    for plan in plans:
      plan.execute()
  results = {"seeds": seeds, "commit": commit(), **report.collect_results(plan)}
  path = Path(_JSON.value or folder / "ablation.json")
  write_json(path, results)
  print(f"\n{report.write_report(path.parent, plan.metrics, results)}")


if __name__ == "__main__":
  command_line.run(main)

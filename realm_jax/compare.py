"""Compares two evaluations, question by question.

    python -m realm_jax.compare --predictions=runs/one/eval/predictions.jsonl \\
      --predictions=runs/two/eval/predictions.jsonl

Prints, for each metric, both means, their difference with its 95 % bootstrap
interval, and the p-value of a paired randomization test. The files are those
that `realm_jax.evaluate` writes to OUTPUT_DIR: predictions.jsonl or
retrieved.jsonl.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.console import json_flag
from realm_jax.errors import RealmError
from realm_jax.evaluation.compare import compare, comparison_table

_PREDICTIONS = flags.DEFINE_multi_string(
  "predictions",
  None,
  "File of an evaluation; give the flag twice.",
  required=True,
)
_SEED = flags.DEFINE_integer(
  "seed", 0, "Seed of the resampling.", lower_bound=0
)
_write_json = json_flag("File to which the comparison is written as JSON.")


def main(argv: Sequence[str]) -> None:
  """Compares the two files and prints a table."""
  del argv
  if len(_PREDICTIONS.value) != 2:
    raise RealmError(
      f"--predictions is given {len(_PREDICTIONS.value)} times; give it twice, "
      "once for each evaluation"
    )
  found = compare(*_PREDICTIONS.value, seed=_SEED.value)
  _write_json(found)
  print(comparison_table(found))


if __name__ == "__main__":
  command_line.run(main)

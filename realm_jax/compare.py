"""Compares evaluations of the same questions, question by question.

    python -m realm_jax.compare --predictions=runs/one/eval \\
      --predictions=runs/two/eval --predictions=runs/three/eval

Prints the metrics of each with 95 % bootstrap intervals. Then compares each of
the others with the first, by metric: both means, their difference with its
paired interval, and the p-value of a paired randomization test. An evaluation
is the OUTPUT_DIR of `realm_jax.evaluate`, or its file predictions.jsonl or
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
  "File or folder of an evaluation; give the flag for each.",
  required=True,
)
_METRICS = flags.DEFINE_list(
  "metrics", [], "Metrics to compare, such as exact_match,f1; by default all."
)
_SEED = flags.DEFINE_integer(
  "seed", 0, "Seed of the resampling.", lower_bound=0
)
_write_json = json_flag("File to which the comparison is written as JSON.")


def main(argv: Sequence[str]) -> None:
  """Compares the evaluations and prints tables."""
  del argv
  if len(_PREDICTIONS.value) < 2:
    raise RealmError(
      "--predictions is given once; give it for each of the evaluations"
    )
  comparison = compare(
    *_PREDICTIONS.value, metrics=_METRICS.value, seed=_SEED.value
  )
  _write_json(comparison)
  print(comparison_table(comparison))


if __name__ == "__main__":
  command_line.run(main)

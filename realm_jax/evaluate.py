"""Measures a trained model: `python -m realm_jax.evaluate --gin_file=…`.

The gin file chooses what is measured: gin/runs/eval.gin answers questions,
gin/runs/eval_retrieval.gin only retrieves for them, gin/runs/eval_masked.gin
fills in masked words. The figures go to the terminal, to OUTPUT_DIR and, with
`--json=FILE`, to a file.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax import configuration
from realm_jax.evaluation import outputs, run
from realm_jax.partitioning import cpu_tuning

_JSON = flags.DEFINE_string(
  "json", None, "A file to write the figures to as JSON, too."
)


def main(argv: Sequence[str]) -> None:
  """Runs `evaluation.run.evaluate` as gin configures it."""
  del argv
  cpu_tuning.keep_freed_memory()
  result = configuration.call(run.evaluate)
  if _JSON.value:
    outputs.write_json(_JSON.value, result)
  print(outputs.table(result))


if __name__ == "__main__":
  configuration.run(main)

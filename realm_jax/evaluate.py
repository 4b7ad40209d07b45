"""Evaluates a trained model: `python -m realm_jax.evaluate --model_dir=…`.

The stage of the run, or a gin file, chooses the evaluation: gin/runs/eval.gin
answers questions, gin/runs/eval_retrieval.gin retrieves blocks for them, and
gin/runs/eval_masked.gin, eval_masked_text.gin and eval_statements.gin fill in
masked words. The metrics are printed and written to OUTPUT_DIR, by default
MODEL_DIR/eval (docs/evaluation.md). Several processes share the questions and
OUTPUT_DIR, and process 0 prints. The same command resumes a killed evaluation.

With `--follow`, each new checkpoint of MODEL_DIR is evaluated, with a folder in
OUTPUT_DIR, until SIGTERM or FOLLOW_UNTIL_STEP. MODEL_DIR/best.json records the
best one by BEST_METRIC. The trainer keeps it, and CHECKPOINT_STEP = "best" (or
the path MODEL_DIR/checkpoints/best) selects it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.console import json_flag
from realm_jax.evaluation.scores import summary_table

if TYPE_CHECKING:
  from realm_jax.evaluation.outputs import Metrics

_write_json = json_flag("File to which the metrics are written as JSON.")
_FOLLOW = flags.DEFINE_bool(
  "follow", False, "Evaluate the checkpoints of a run as they appear."
)

# Recipes from which the run's stage chooses one (`Stage.evaluation`).
_RECIPES = (
  "gin/runs/eval.gin",
  "gin/runs/eval_masked.gin",
  "gin/runs/eval_retrieval.gin",
)


def main(argv: Sequence[str]) -> None:
  """Calls `evaluation.evaluate`, or `follow`, as gin configures it."""
  del argv
  name = "follow" if _FOLLOW.value else "evaluate"
  evaluate = command_line.configured(
    f"realm_jax.evaluation.evaluate:{name}",
    recipe=_RECIPES,
    waits=_FOLLOW.value,
  )
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.partitioning.agreement import Agreement

  cpu_tuning.keep_freed_memory()
  metrics: Metrics | None = evaluate()
  if metrics is None:
    return

  def report() -> None:
    _write_json(metrics)
    print(summary_table(metrics))

  # The other processes wait, and fail if process 0 cannot write.
  Agreement("report").on_process_0("report", report)


if __name__ == "__main__":
  command_line.run(main, on_devices=True)

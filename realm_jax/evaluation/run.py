"""Runs the evaluation that a configuration chooses."""

from collections.abc import Callable

from etils import epath

from realm_jax.evaluation.outputs import Figures
from realm_jax.training.kept_configuration import run_directory


def evaluate(
  *,
  evaluation: Callable[..., Figures],
  model_dir: epath.PathLike,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Runs one of this package's evaluations, whose arguments gin has bound.

  Args:
    evaluation: Evaluation that takes an `output_dir`.
    model_dir: MODEL_DIR of the run, or one of its checkpoints.
    output_dir: Directory of what it writes; None is MODEL_DIR/eval.
  """
  return evaluation(output_dir=output_dir or default_output_dir(model_dir))


def default_output_dir(model_dir: epath.PathLike) -> epath.Path:
  """Returns where the evaluation of a run, or of a checkpoint, writes to."""
  return run_directory(model_dir) / "eval"

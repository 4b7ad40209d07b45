"""Which of the reader's two heads the steps of a run have trained.

A checkpoint always has the parameters of both heads. A run of open QA gives its
masked-LM head no gradient while the encoder below changes, and pre-training
likewise its span head, so neither may be asked. Adam's second moment of a head
without a gradient is exactly zero.
"""

import contextlib
import functools

import numpy as np
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.trained_model import TrainedModel

MASKED_LM, SPAN = "masked_lm_head", "span_head"
_OPTIMIZER = "optimizer"
_HEADS = (MASKED_LM, SPAN)


def require_masked_lm_head(model: TrainedModel) -> None:
  """Checks that a run can fill in [MASK]s.

  Raises:
    ExplanationError: Its steps have trained the span head alone.
  """
  if trained_heads(model.model_dir, model.step) == {SPAN}:
    raise ExplanationError(
      f"checkpoint {model.step} of {model.model_dir} is of open QA: it keeps "
      "the masked-LM head that the run began with, but its steps have trained "
      "the encoder for the span head alone, so the two no longer fit; give "
      "the run of pre-training as MODEL_DIR, or ask a question without [MASK]"
    )


def require_span_head(model: TrainedModel, text: str) -> None:
  """Checks that a run can answer the question `text`.

  Raises:
    ExplanationError: Its steps have trained the masked-LM head alone.
  """
  if trained_heads(model.model_dir, model.step) == {MASKED_LM}:
    raise ExplanationError(
      f"{text!r} has no [MASK], and checkpoint {model.step} of "
      f"{model.model_dir} has only a masked-LM reader: its steps have not "
      "trained the span head that answers questions; write [MASK] for what is "
      "to be filled in, or give a run of open QA as MODEL_DIR"
    )


@functools.lru_cache(maxsize=16)
def trained_heads(model_dir: epath.Path, step: int) -> set[str]:
  """Returns the heads, `MASKED_LM` or `SPAN`, that the run's steps trained.

  None of an imported checkpoint, which has no optimizer, nor of checkpoint 0.
  """
  suffixes = {head: f"nu/reader/{head}/norm/scale" for head in _HEADS}
  store = CheckpointStore(model_dir)
  with contextlib.closing(store):
    if _OPTIMIZER not in store.items(step):
      return set()
    moments = store.restore_arrays(
      step, _OPTIMIZER, lambda path: path.endswith(tuple(suffixes.values()))
    )
  return {
    head
    for head, suffix in suffixes.items()
    for path, moment in moments.items()
    if path.endswith(suffix) and np.any(moment)
  }
